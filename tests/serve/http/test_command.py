"""`jaxspec serve`: options, keys and addresses."""

import os
import re
import signal
import subprocess
import sys

import pytest

import jaxspec
from jaxspec.cli import main as cli
from jaxspec.cli import serve
from jaxspec.cli.shared import options
from jaxspec.cli.shared.errors import USER_ERROR

pytest.importorskip("fastapi")


def parse(*arguments):
    return cli.make_parser().parse_args(["serve", "mini", *arguments])


def test_only_this_machine_by_default():
    given = parse()
    assert given.host == "127.0.0.1" and given.port == 8000
    settings = serve.make_settings(given, None, 100)
    assert {"127.0.0.1", "localhost"} <= set(settings.hosts) and settings.page


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_addresses_need_a_key(host, monkeypatch):
    monkeypatch.delenv(options.KEY_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="set JAXSPEC_API_KEY, or pass --without-key"):
        serve.choose_key(parse("--host", host))
    assert serve.choose_key(parse("--host", host, "--without-key")) is None
    monkeypatch.setenv(options.KEY_VARIABLE, "secret")
    assert serve.choose_key(parse("--host", host)) == "secret"
    assert serve.choose_key(parse("--host", host, "--api-key", "other")) == "other"
    assert serve.make_settings(parse("--host", host), "secret", 100).hosts == ()


@pytest.mark.parametrize("key", ["", "two words", "line\n", "schlüssel"])
def test_a_key_that_no_client_could_send(key):
    with pytest.raises(ValueError, match="visible ASCII characters"):
        serve.choose_key(parse("--api-key", key))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "99999"),
        ("--port", "http"),
        ("--send-timeout", "0"),
        ("--visit-timeout", "-1"),
        ("--drain-timeout", "nan"),
        ("--request-timeout", "soon"),
        ("--metrics-prefix", "my metrics"),
        ("--allow-host", "proxy:8080"),
    ],
)
def test_bad_values_are_refused_before_the_model_is_loaded(option, value, capsys):
    with pytest.raises(SystemExit):
        parse(option, value)
    assert "is no " in capsys.readouterr().err


def test_a_server_answers_to_its_own_address():
    assert "127.0.0.2" in serve.make_settings(parse("--host", "127.0.0.2"), None, 100).hosts


@pytest.mark.parametrize("name", ["proxy.example", "[::1]", "fe80::1"])
def test_names_of_proxies(name):
    assert name in serve.make_settings(parse("--allow-host", name), None, 100).hosts


def test_options_reach_the_settings():
    given = parse("--queue", "5", "--drain-timeout", "3", "--no-page", "--served-model-name", "m")
    settings = serve.make_settings(given, None, 100)
    assert settings.most_choices == 5 and settings.drain_timeout == 3
    assert settings.model == "m" and not settings.page and settings.room == 100


def test_requests_choose_among_the_drafters_that_the_command_names(capsys):
    size = ("--slots", "1", "--capacity", "256", "--dtype", "float32")
    engine, _ = serve._make_engine(parse(*size, "--drafter", "medusa", "--drafter", "jetspec"))
    assert engine.drafters == ("medusa", "jetspec")
    # By default the engine tries the first two that are loaded.
    assert serve._make_engine(parse(*size))[0].drafters == ("jetspec", "dflash")
    assert serve._make_engine(parse(*size, "--drafter", "ar"))[0].drafters == ("ar",)
    both = ("--drafter", "medusa", "--drafter", "other")
    assert cli.main(["serve", "mini", "--port", "0", *both]) == USER_ERROR
    assert "'other'" in capsys.readouterr().err


def test_a_drafter_may_learn(capsys, tmp_path):
    size = ("--slots", "1", "--capacity", "256", "--dtype", "float32", "--drafter", "medusa")
    rates = ("--head-rate", "0.5", "--adapt-folder", str(tmp_path / "versions"))
    engine, _ = serve._make_engine(parse(*size, "--adapt", "always-head", *rates))
    found = engine.counters()["adaptation"]
    assert found["on"] and found["version"] == 0
    student = engine.adapts
    assert student.drafter == "medusa" and student._device is None  # of one device
    assert student.adaptation.options.learner.head_rate == 0.5
    engine.close()
    engine, _ = serve._make_engine(parse(*size))
    assert "adaptation" not in engine.counters()
    for given, said in (
        (("--adapt", "best"), "unknown decider 'best'"),
        (("--adapt-device", "1"), "--adapt-device is given without --adapt"),
        (("--adapt", "osd", "--adapt-device", "7"), "there is no device 7 to adapt on: give one"),
        (("--adapt", "osd", "--head-rate", "0"), "--head-rate is 0.0: give a number above 0"),
    ):
        assert cli.main(["serve", "mini", "--port", "0", *given]) == USER_ERROR
        assert said in capsys.readouterr().err


def test_a_path_is_no_name(tmp_path):
    assert serve.name_model(str(tmp_path)) == tmp_path.name
    assert serve.name_model("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_a_taken_port_is_a_mistake_in_one_line(capsys):
    from jaxspec.serve.http.server import listen

    with listen("127.0.0.1", 0) as sock:
        status = cli.main(["serve", "mini", "--port", str(sock.getsockname()[1])])
    error = capsys.readouterr().err
    assert status == USER_ERROR and error.count("\n") == 1
    assert "cannot listen" in error and "(Address already in use): give another" in error


def test_a_missing_library_is_named(capsys, monkeypatch):
    monkeypatch.setattr(serve, "NEEDED", ("no_such_library",))
    assert cli.main(["serve", "mini"]) == USER_ERROR
    assert "no_such_library is missing: pip install" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_command(tmp_path):
    """From the command line to a text, and to the end by a signal."""
    httpx = pytest.importorskip("httpx")
    http_server = pytest.importorskip("http_server")
    size = ["--slots", "1", "--budget", "4", "--capacity", "256", "--rule", "fixed"]
    command = [sys.executable, "-m", "jaxspec", "serve", "mini", "--drafter", "dflash", *size]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--dtype", "float32", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"JAXSPEC_CACHE": str(tmp_path / "cache")},
        )
    try:
        url = re.search(r"http://[^/]+", process.stdout.readline()).group()
        with httpx.Client(base_url=url, timeout=60) as http:
            http_server.wait_until(lambda: http.get("/ready").status_code == 200, 300)
            body = {"prompt": "It was a", "max_tokens": 12, "temperature": 0}
            text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()
    mini = jaxspec.load("mini", drafter="dflash", dtype="float32")
    assert text == jaxspec.decode(mini, "It was a", max_new_tokens=12, drafter="ar").text


def test_several_processes_need_devices_to_share(capsys):
    assert cli.main(["serve", "mini", "--coordinator", "host:1", "--processes", "2"]) == 2
    assert "give --tp, the number of all devices" in capsys.readouterr().err
    assert cli.main(["serve", "mini", "--tp", "8", "--processes", "2"]) == 2
    assert "several processes need all of coordinator" in capsys.readouterr().err
