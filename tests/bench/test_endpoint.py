"""The load client: what it counts, against arithmetic and against a server with a fake engine."""

import asyncio
import json

import pytest
from fake_engine import FakeEngine

from jaxspec.bench.endpoint.load import Load, Measured, run_load
from jaxspec.bench.endpoint.request import Asked, ask, has_text, make_body
from jaxspec.bench.endpoint.summary import summarise
from jaxspec.cli import main as cli

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")


def test_times_of_a_request():
    one = Asked(200, 5.0, (0.2, 0.3, 0.6), tokens=9)
    assert one.first == 0.2 and one.total == 0.6 and one.per_token == pytest.approx(0.05)
    assert one.gaps == pytest.approx([0.1, 0.3])
    assert Asked(200, 5.0, (0.2,), tokens=1).per_token is None


def test_summary():
    asked = [Asked(200, i, (0.1 * i, 0.1 * i + 1.0), tokens=11) for i in range(1, 5)]
    asked.append(Asked(429, 9.0, error="status 429"))
    summary = summarise(Measured(asked, 8.0), first_goal=0.25, per_token_goal=0.11)
    assert summary["requests"] == 5 and summary["completed"] == 4
    assert summary["errors"] == {"status 429": 1}
    assert summary["tokens"] == 44 and summary["tokens_per_second"] == 5.5
    assert summary["requests_per_second"] == 0.5 and summary["goodput"] == 0.25
    assert summary["ms"]["first token"]["p50"] == pytest.approx(250)
    assert summary["ms"]["per token"]["p99"] == pytest.approx(100)
    assert summary["ms"]["whole answer"]["p50"] == pytest.approx(1250)
    assert summarise(Measured(asked, 8.0), per_token_goal=0.09)["goodput"] == 0


def test_summary_without_answers():
    summary = summarise(Measured([Asked(0, 0.0, error="ConnectError")], 1.0))
    assert summary["completed"] == 0 and summary["ms"]["first token"]["p50"] is None


def test_bodies():
    assert make_body("x", max_tokens=3)[0] == "completions"
    messages = [{"role": "user", "content": "Hi"}]
    path, body = make_body(messages, max_tokens=3)
    assert path == "chat/completions" and body["messages"] == messages and body["max_tokens"] == 3
    assert make_body([5, 6])[1]["prompt"] == [5, 6]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": None}]}, False),
        ({"choices": [], "usage": {}}, False),
    ],
)
def test_events_with_text(event, expected):
    assert has_text(event) is expected


@pytest.mark.parametrize("load", [Load(12, clients=3), Load(12, rate=200.0)])
def test_loads(load):
    engine = FakeEngine(slots=4, queue=12)
    with http_server.running(engine) as server:
        done = asyncio.run(run_load(f"{server.url}/v1", ["a", [7, 8]], load, max_tokens=10))
    assert [one.error for one in done.asked] == [None] * 12
    assert all(one.tokens == 10 for one in done.asked)
    assert {bytes(request.tokens) for request in engine.seen} == {b"a", bytes([7, 8])}
    if load.rate is None:
        assert engine.most_running <= 3


def test_an_empty_answer_is_an_answer():
    """The target may end the text at once, or with a stop string."""
    with http_server.running() as server:
        sent = run_load(f"{server.url}/v1", ["a"], Load(1), max_tokens=30, stop=list("abei"))
        (one,) = asyncio.run(sent).asked
    assert one.error is None and one.tokens >= 1 and one.total > 0


@pytest.mark.parametrize(
    ("lines", "tokens", "error"),
    [
        (['data:{"choices": [{"text": "a"}], "error": null}', "data: [DONE]"], 1, None),
        (['data: {"choices": null, "usage": {"completion_tokens": 7}}'], 7, None),
        (['data: {"error": {"message": "too long"}}'], 0, "too long"),
        (['data: {"error": "broken"}'], 0, "broken"),
        (['data: {"choices": ['], 0, "JSONDecodeError"),
    ],
)
def test_streams_of_other_endpoints(lines, tokens, error):
    """Servers differ in what they send; none of it may end the measurement."""
    answer = httpx.Response(200, text="\n\n".join(lines))

    async def send():
        transport = httpx.MockTransport(lambda request: answer)
        async with httpx.AsyncClient(base_url="http://x/", transport=transport) as client:
            return await ask(client, "completions", {})

    one = asyncio.run(send())
    assert (one.tokens, one.error) == (tokens, error)


def test_refusals_are_counted():
    with http_server.running(FakeEngine(slots=1, queue=1, seconds=0.05)) as server:
        sent = run_load(f"{server.url}/v1", ["a"], Load(10, clients=10), max_tokens=4)
        summary = summarise(asyncio.run(sent))
    assert summary["errors"]["status 429"] >= 1 <= summary["completed"]


def test_command(capsys, tmp_path):
    out = tmp_path / "out.json"
    with http_server.running(FakeEngine(queue=40), key="sesame") as server:
        arguments = ["bench", "endpoint", "--url", f"{server.url}/v1", "--requests", "6"]
        arguments += ["--rate", "100", "--clients", "2", "--max-tokens", "8", "--json", str(out)]
        assert cli.main([*arguments, "--chat", "--api-key", "sesame"]) == 0
        assert all(bytes(one.tokens).startswith(b"user: ") for one in server.engine.seen)
        printed = capsys.readouterr().out
        assert cli.main([*arguments, "--api-key", "wrong"]) == 1
    assert "100 requests/s: 6 of 6 answered" in printed and "2 clients: 6 of 6" in printed
    assert "6 x status 401" in capsys.readouterr().out
    results = json.loads(out.read_text())
    assert len(results["results"]) == 2 and "sesame" not in out.read_text()


def test_bad_rates(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "endpoint", "--rate", "0"])
    assert "is no list of rates" in capsys.readouterr().err
