"""Two processes serve one target: texts of one process, and how they end."""

import concurrent.futures
import signal
import subprocess

import pytest
from sharded_toys import make_params
from two_processes import find_port, start_two

import jaxspec
from jaxspec.call.options import group_options

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")
pytestmark = pytest.mark.slow

# Each has a slot's worth of tokens, so that the two slots change hands.
REQUESTS = [
    ([4, 9, 2, 14, 4, 9], {"temperature": 0.0}),
    ([7], {"temperature": 1.0, "seed": 3}),
    ([1, 2, 3], {"temperature": 1.0, "seed": 5}),
]
SIZES = ["--slots", "2", "--budget", "4", "--capacity", "192", "--rule", "fixed"]
LOST = 120  # seconds, far more than JAX waits for a silent process


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A target with a drafter, in memory and in a folder."""
    folder, params = tmp_path_factory.mktemp("target"), make_params("qwen3", ("dflash",))
    jaxspec.save(params, folder)
    return params, folder


@pytest.fixture
def serving(saved, tmp_path):
    """Two processes that serve, and a client of the first."""
    port, log = find_port(), tmp_path / "log"
    with log.open("w") as file:
        command = ["serve", str(saved[1]), "--port", str(port), "--dtype", "float32", *SIZES]
        processes = start_two(*command, outputs=(file, file), errors=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as http:
            http_server.wait_until(lambda: is_ready(http, processes, log), 1200)
            yield processes, http, log
    finally:
        for process in processes:
            process.kill()
            process.wait(20)


def is_ready(http, processes, log):
    assert all(process.poll() is None for process in processes), log.read_text()[-3000:]
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False  # it does not listen yet


def complete(http, prompt, settings):
    body = {"prompt": prompt, "max_tokens": 14, "ignore_eos": True, "return_token_ids": True}
    answer = http.post("/v1/completions", json=body | settings)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def cancel(http):
    """Begin a long text, and go away."""
    body = {"prompt": [11, 11], "max_tokens": 150, "ignore_eos": True, "return_token_ids": True}
    body["stream"] = True  # without a tokenizer, events are of tokens alone
    with http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())


def test_texts_are_those_of_one_process_and_a_signal_ends_all(saved, serving):
    processes, http, log = serving
    with concurrent.futures.ThreadPoolExecutor() as threads:
        cancelled = threads.submit(cancel, http)
        found = list(threads.map(lambda one: complete(http, *one), REQUESTS))
        cancelled.result()
    assert 'request_success_total{finished_reason="abort"} 1.0' in http.get("/metrics").text
    for (prompt, settings), tokens in zip(REQUESTS, found, strict=True):
        options = settings | {"max_new_tokens": 14, "ignore_eos": True, "drafter": "ar"}
        assert tokens == jaxspec.decode(saved[0], prompt, **group_options(**options)).tokens
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(LOST) for process in processes] == [0, 0], log.read_text()[-3000:]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_ends_when_the_other_dies(serving, killed):
    processes, http, log = serving
    processes[killed].kill()
    assert processes[1 - killed].wait(LOST) != 0, log.read_text()[-3000:]
