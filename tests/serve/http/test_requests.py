"""Requests as curl would send them: what is refused, and how errors look."""

import dataclasses
import json
import re
import threading

import pytest
import tokenizer_toys as toys
from fake_engine import EOS, ByteTokenizer, FakeEngine

from jaxspec.io.text.chat_template import render_chat
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve import InvalidRequest

http_server = pytest.importorskip("http_server")
pydantic = pytest.importorskip("pydantic")
parameters = pytest.importorskip("jaxspec.serve.http.completions.parameters")

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
check_error = http_server.check_error


@pytest.fixture(scope="module")
def server():
    with http_server.running(most_bytes=100_000) as one:
        yield one


def test_a_null_is_as_good_as_nothing(server):
    options = {"include_usage": None}
    given = {"seed": None, "other": None, "stream": True, "stream_options": options}
    assert server.post(prompt="x", max_tokens=1, **given).status_code == 200


def test_zero_is_not_false(server):
    refused = server.post(CHAT, messages=HI, echo=0)
    check_error(refused, 400, "unsupported_parameter", "echo")
    refused = server.post(prompt="x", use_beam_search=0)
    check_error(refused, 400, "unsupported_parameter", "use_beam_search")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "prompt"),
        ({"prompt": "x", "temprature": 1}, "unknown_parameter", "temprature"),
        ({"prompt": "x", "messages": HI}, "unknown_parameter", "messages"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": ["a", ""]}, "invalid_value", "prompt"),
        ({"prompt": [1, "a"]}, "invalid_value", "prompt"),
        ({"prompt": [1.5]}, "invalid_value", "prompt"),
        ({"prompt": [True]}, "invalid_value", "prompt"),
        ({"prompt": [EOS + 1]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt"),
        ({"prompt": "\ud800"}, "invalid_value", "prompt"),
        ({"prompt": "x", "max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"prompt": "x" * 513, "max_tokens": 0}, "context_length_exceeded", None),
        ({"prompt": "x", "echo": "yes"}, "invalid_value", "echo"),
        ({"prompt": "x", "max_tokens": "5"}, "invalid_value", "max_tokens"),
        ({"prompt": "x", "max_tokens": 1.5}, "invalid_value", "max_tokens"),
        ({"prompt": "x", "max_tokens": 512}, "context_length_exceeded", "max_tokens"),
        ({"prompt": "x" * 512}, "context_length_exceeded", "max_tokens"),
        ({"prompt": "x", "temperature": -1}, "invalid_value", "temperature"),
        ({"prompt": "x", "temperature": 2.1}, "invalid_value", "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "invalid_value", "temperature"),
        ({"prompt": "x", "temperature": float("nan")}, "invalid_value", "temperature"),
        ({"prompt": "x", "top_p": 0}, "invalid_value", "top_p"),
        ({"prompt": "x", "top_k": -2}, "invalid_value", "top_k"),
        ({"prompt": "x", "min_p": 1.5}, "invalid_value", "min_p"),
        ({"prompt": "x", "presence_penalty": 2.5}, "invalid_value", "presence_penalty"),
        ({"prompt": "x", "frequency_penalty": -2.1}, "invalid_value", "frequency_penalty"),
        ({"prompt": "x", "repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"prompt": "x", "seed": 2**63}, "invalid_value", "seed"),
        ({"prompt": "x", "n": 0}, "invalid_value", "n"),
        ({"prompt": "x", "n": 65}, "invalid_value", "n"),
        ({"prompt": "x", "stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"prompt": "x", "stop": ""}, "invalid_value", "stop"),
        ({"prompt": "x", "stop": 5}, "invalid_value", "stop"),
        ({"prompt": "x", "stop": "a" * 1001}, "invalid_value", "stop"),
        ({"prompt": "x", "stop_token_ids": ["5"]}, "invalid_value", "stop_token_ids[0]"),
        ({"prompt": ["a"] * 65}, "invalid_value", "prompt"),
        ({"prompt": "x", "\ud800": 1}, "unknown_parameter", "?"),
        ({"prompt": "x", "stream": "yes"}, "invalid_value", "stream"),
        ({"prompt": "x", "logprobs": True}, "invalid_value", "logprobs"),
        ({"prompt": "x", "logprobs": 6}, "invalid_value", "logprobs"),
        ({"prompt": "x", "logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
        ({"prompt": "x", "logit_bias": {"five": 1}}, "invalid_value", "logit_bias"),
        ({"prompt": "x", "logit_bias": {"5": "1"}}, "invalid_value", "logit_bias.5"),
        ({"prompt": "x", "logit_bias": [5]}, "invalid_value", "logit_bias"),
        (
            {"prompt": "x", "logit_bias": {str(id): 1 for id in range(65)}},
            "invalid_value",
            "logit_bias",
        ),
        ({"prompt": "x", "top_logprobs": 2}, "unknown_parameter", "top_logprobs"),
        ({"prompt": "x", "stream_options": {}}, "unsupported_parameter", "stream_options"),
        (
            {"prompt": "x", "stream": True, "stream_options": {"a": 1}},
            "unknown_parameter",
            "stream_options.a",
        ),
        (
            {"prompt": "x", "stream": True, "stream_options": {"include_obfuscation": True}},
            "invalid_value",
            "stream_options.include_obfuscation",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_bad_completions(server, body, code, param):
    text = json.dumps(body)
    headers = {"Content-Type": "application/json"}
    check_error(
        server.http.post("/v1/completions", content=text, headers=headers), 400, code, param
    )


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "Hi"}, "invalid_value", "messages"),
        ({"messages": ["Hi"]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "invalid_value",
            "messages",
        ),
        ({"messages": HI, "prompt": "x"}, "unknown_parameter", "prompt"),
        ({"messages": HI, "logprobs": 5}, "invalid_value", "logprobs"),
        (
            {"messages": HI, "logprobs": True, "top_logprobs": 21},
            "invalid_value",
            "top_logprobs",
        ),
        ({"messages": HI, "top_logprobs": 2}, "unsupported_parameter", "top_logprobs"),
        (
            {"messages": HI, "max_tokens": 5, "max_completion_tokens": 6},
            "invalid_value",
            "max_tokens",
        ),
        (
            {"messages": HI, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
            "invalid_value",
            "chat_template_kwargs",
        ),
        (
            {"messages": HI, "chat_template_kwargs": {"truncation": True}},
            "invalid_value",
            "chat_template_kwargs",
        ),
        ({"messages": HI, "chat_template_kwargs": {"fail": True}}, "invalid_value", "messages"),
    ],
)
def test_bad_chats(server, body, code, param):
    check_error(server.post(CHAT, **body), 400, code, param)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": ["Hi"] * 9},
        {"stop_token_ids": ["a"] * 9},
        {"stop": [5] * 9},
        {"logit_bias": {str(id): "a" for id in range(99)}},
        {f"unknown{number}": 1 for number in range(9)},
        {"stream": True, "stream_options": {f"unknown{number}": 1 for number in range(9)}},
    ],
    ids=lambda wrong: next(reversed(wrong)),
)
def test_only_the_first_mistake_counts(wrong):
    """A body of 8 MiB can hold a million; to list them would stop the event loop for seconds."""
    with pytest.raises(pydantic.ValidationError) as error:
        parameters.ChatParameters.model_validate({"messages": HI} | wrong)
    assert error.value.error_count() == 1


def test_what_cannot_fit_is_refused_before_it_is_encoded():
    """It would keep the tokenizer from the prompts of others."""

    class Busy(http_server.ByteTokenizer):
        def encode(self, text, special=True):
            raise AssertionError("it was encoded")

    with http_server.running(tokenizer=Busy()) as server:
        long = "x" * (256 * server.engine.room + 1)
        check_error(server.post(prompt=long), 400, "context_length_exceeded", "prompt")
        messages = [{"role": "user", "content": long}]
        check_error(
            server.post(CHAT, messages=messages), 400, "context_length_exceeded", "messages"
        )
        check_error(server.post(prompt=["a"] * 65), 400, "invalid_value", "prompt")


def test_text_parts_and_the_developer_role(server):
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert server.post(CHAT, messages=messages, max_tokens=1).status_code == 200
    assert bytes(server.engine.seen[-1].tokens) == b"system: Be short.\nuser: Hi\n"


class WalkingTokenizer(ByteTokenizer):
    """Its template walks the arguments of calls as a mapping."""

    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}"
        "{% endfor %}>{% endfor %}|{% endfor %}"
    )

    def chat(self, messages, **variables):
        return self.encode(render_chat(self.template, messages, variables).text)


def test_histories_with_tool_calls_as_clients_send_them():
    function = {"name": "weather", "arguments": '{"city": "Paris"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    # What `model_dump()` of the client's answer gives.
    empty = dict.fromkeys(("refusal", "audio", "function_call", "annotations"))
    asked = {"role": "assistant", "content": None, "tool_calls": [call, call]} | empty
    parts = [{"type": "text", "text": "rain"}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": parts}
    with http_server.running(tokenizer=WalkingTokenizer()) as one:
        assert one.post(CHAT, messages=[*HI, asked, result], max_tokens=1).status_code == 200
        expected = b"user:Hi|assistant:<weather city=Paris><weather city=Paris>|tool:rain|"
        assert bytes(one.engine.seen[-1].tokens) == expected
        older = {"role": "assistant", "content": None, "function_call": function}
        done = {"role": "function", "name": "weather", "content": "rain"}
        assert one.post(CHAT, messages=[*HI, older, done], max_tokens=1).status_code == 200
        expected = b"user:Hi|assistant:<weather city=Paris>|tool:rain|"
        assert bytes(one.engine.seen[-1].tokens) == expected
        function["arguments"] = '{"city": "Par'
        refused = one.post(CHAT, messages=[*HI, asked, result], max_tokens=1)
        check_error(refused, 400, "invalid_value", "messages")
        assert "arguments of a call of 'weather' are no JSON object" in refused.text
        function["arguments"] = "x" * (256 * one.engine.room)
        refused = one.post(CHAT, messages=[*HI, asked, result], max_tokens=1)
        check_error(refused, 400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("max_new_tokens", "max_tokens"),
        ("stop", "stop_token_ids"),
        ("min_tokens", "min_tokens"),
        ("repetition_penalty", "repetition_penalty"),
        ("logit_bias", "logit_bias"),
    ],
)
def test_what_the_engine_refuses_names_the_parameter(server, monkeypatch, field, param):
    def refuse(request):
        raise InvalidRequest(field, "give less")

    monkeypatch.setattr(server.engine, "submit", refuse)
    check_error(server.post(prompt="x"), 400, "invalid_value", param)


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"7", b"\xff{}", b"[" * 20_000])
def test_bodies_that_are_no_object(server, body):
    headers = {"Content-Type": "application/json"}
    response = server.http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 400 and "message" in response.json()["error"]


def test_forms_of_web_pages_are_no_requests(server):
    """A page of another site can send text/plain without asking, and must not use the model."""
    headers = {"Content-Type": "text/plain"}
    response = server.http.post("/v1/completions", content='{"prompt": "x"}', headers=headers)
    assert response.status_code == 400


def test_large_bodies_are_refused(server):
    check_error(server.post(prompt="x" * 200_000), 413, "body_too_large")


def test_unknown_paths_and_methods(server):
    check_error(server.http.get("/v1/nothing"), 404, "not_found")
    check_error(server.http.get("/v1/completions"), 405, "method_not_allowed")
    check_error(server.http.get("/v1/models/other"), 404, "model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(stream):
    with http_server.running(FakeEngine(seconds=0.01), request_timeout=1.0) as server:
        response = server.post(prompt="x", max_tokens=400, stream=stream)
        if stream:
            lines = response.text.strip().split("\n\n")
            *parts, last = [json.loads(line.removeprefix("data: ")) for line in lines]
            assert last["error"]["code"] == "timeout"
            # Clients know OpenAI's reasons alone, and this is none of them.
            assert parts and all(one["choices"][0]["finish_reason"] is None for one in parts)
        else:
            check_error(response, 504, "timeout")
        assert server.post(prompt="x", max_tokens=1).status_code == 200


def test_an_engine_that_gives_a_request_up():
    class Broken(FakeEngine):
        def visit(self):
            return [dataclasses.replace(one, finish="error") for one in super().visit()]

    with http_server.running(Broken()) as server:
        check_error(server.post(prompt="x"), 500, "engine_error")


def test_warming_up():
    engine, warm = FakeEngine(), threading.Event()
    engine.warm_up = lambda wait: warm.wait(20)
    with http_server.running(engine, wait=False) as server:
        http_server.wait_until(lambda: server.server.started)
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/ready").status_code == 503
        response = server.post(prompt="x")
        check_error(response, 503, "warming_up")
        assert "Retry-After" in response.headers
        warm.set()
        http_server.wait_until(lambda: server.http.get("/ready").status_code == 200)
        assert server.post(prompt="x").status_code == 200


def test_an_engine_that_cannot_warm_up_ends_the_server():
    def warm_up(wait):
        raise MemoryError

    engine = FakeEngine()
    engine.warm_up = warm_up
    with http_server.running(engine, wait=False) as server:
        http_server.wait_until(lambda: server.server.should_exit)
        assert server.service.driver.failure == "MemoryError"


def test_a_mistake_of_the_server_is_an_error_object_and_not_in_the_log(caplog):
    engine = FakeEngine()
    with http_server.running(engine) as server:

        def break_down(request):
            raise KeyError(bytes(request.tokens))

        engine.submit = break_down
        check_error(server.post(prompt="sesame"), 500, "internal_error")
        assert server.http.get("/health").status_code == 200
    assert "KeyError" in caplog.text and "sesame" not in caplog.text


def test_ids_of_requests(server):
    given = {"X-Request-Id": "abc-1"}
    response = server.http.post("/v1/completions", json={"prompt": "x"}, headers=given)
    assert response.headers["X-Request-Id"] == "abc-1" and response.json()["id"] == "cmpl-abc-1"
    for bad in ("a b", "x" * 200, "a\tb"):
        made = server.http.get("/health", headers={"X-Request-Id": bad}).headers["X-Request-Id"]
        assert made != bad and len(made) == 32


def test_a_refused_request_leaves_no_samples_behind():
    """The queue has room for some of the samples, and none of them may stay."""
    engine = FakeEngine(slots=1, queue=3, seconds=0.005)
    with http_server.running(engine) as server:
        check_error(server.post(prompt="x", n=6), 429, "queue_full")
        http_server.wait_until(lambda: engine.idle)
        assert not server.service.driver.busy and engine.tokens <= 3 * engine.per_visit


def test_a_model_without_a_chat_template():
    class Plain(http_server.ByteTokenizer):
        has_chat_template = False

    with http_server.running(tokenizer=Plain()) as server:
        check_error(server.post(CHAT, messages=HI), 400, "no_chat_template", "messages")
        assert server.http.get("/v1/models").json()["data"][0]["chat"] is False


def test_only_known_hosts():
    with http_server.running(hosts=("127.0.0.1", "[::1]", "Proxy.example")) as server:
        assert server.http.get("/health").status_code == 200
        for host in ("[::1]:8000", "proxy.example", "PROXY.EXAMPLE:80"):
            assert server.http.get("/health", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "[::1", ""):
            check_error(server.http.get("/", headers={"Host": host}), 400, "unknown_host")


def test_refused_requests_are_logged_without_their_paths(caplog):
    with caplog.at_level("INFO", "jaxspec.serve"), http_server.running(key="sesame") as server:
        assert server.http.get("/v1/some-text").status_code == 401
        server.http.get("/v1/some-text", headers={"Authorization": "Bearer sesame"})
        server.http.get("/health")
    lines = [one.getMessage().split()[1:3] for one in caplog.records if " ms" in one.getMessage()]
    assert lines == [["other", "401"], ["other", "404"]]


def test_events_do_not_wait_for_acknowledgements():
    import socket

    from jaxspec.serve.http.server import listen

    with listen("127.0.0.1", 0) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_idle_connections_outlive_those_of_clients(server):
    """httpx, OpenAI's client and many proxies give theirs up after 5 to 60 seconds."""
    assert server.server.config.timeout_keep_alive > 60


def test_token_ids_and_makers_of_tokens(server):
    def ask(**more):
        return server.post(
            prompt="x", max_tokens=40, temperature=0, trace=True, return_token_ids=True, **more
        )

    whole = ask().json()["choices"][0]
    assert len(whole["token_ids"]) == 40
    assert "".join(one["text"] for one in whole["trace"]["pieces"]) == whole["text"]
    assert {one["drafted"] for one in whole["trace"]["pieces"]} == {True, False}
    tree = whole["trace"]["rounds"][0]
    assert len(tree["text"]) == len(tree["parent"]) and tree["path"][0] == 0
    events = [json.loads(line[6:]) for line in ask(stream=True).text.split("\n\n")[:-2]]
    parts = [event["choices"][0] for event in events]
    for part in parts:
        assert "".join(one["text"] for one in part["trace"]["pieces"]) == part["text"]
    assert sum((part["token_ids"] for part in parts), []) == whole["token_ids"]
    assert "trace" not in server.post(prompt="x").json()["choices"][0]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A server with a tokenizer of a model's folder, whose tokens are bytes."""
    template = "{% for m in messages %}{{ m.content }}{{ x }}{% endfor %}"
    folder = tmp_path_factory.mktemp("tokenizers") / "bytes"
    toys.save(folder, toys.byte_level(), chat_template=template)
    with http_server.running(tokenizer=load_tokenizer(folder)) as one:
        yield one


@pytest.mark.parametrize(
    "path, body",
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi \ud83d there"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ude00"}]}]}),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"x": "\ud83d", "\ude00": 1}}),
        ("/v1/completions", {"prompt": "hi \ud83d there", "stop": "\ud83d x", "user": "\ud83d"}),
        ("/v1/completions", {"prompt": ["a", "\ude00\ud83d"], "drafter": "\ud83d"}),
    ],
)
def test_half_surrogate_pairs_are_replaced(real, path, body):
    """As if U+FFFD stood there; escapes of JSON may write such halves."""
    halves = json.dumps(body | {"max_tokens": 2})
    found = []
    for content in (halves, re.sub(r"\\ud83d|\\ude00", "\ufffd", halves)):
        headers = {"Content-Type": "application/json"}
        answer = real.http.post(path, content=content.encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        found.append(real.engine.seen[-1].tokens)
    assert found[0] == found[1] and bytes(found[0]).count("\ufffd".encode())


def test_deep_nesting_is_no_failure(server):
    """Whatever Python's parser reads at all."""
    for depth in (300, 900, 5_000):
        body = (
            f'{{"messages": [{{"role": "user", "content": "a", "x": {"[" * depth}{"]" * depth}}}]}}'
        )
        headers = {"Content-Type": "application/json"}
        answer = server.http.post(CHAT, content=body.encode(), headers=headers)
        assert answer.status_code in (200, 400)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_request_may_opt_out_of_adaptation(server, monkeypatch, path):
    sent, submit = [], server.engine.submit
    monkeypatch.setattr(server.engine, "submit", lambda one: (sent.append(one), submit(one))[1])
    asks = (
        {"prompt": "x"} if "chat" not in path else {"messages": [{"role": "user", "content": "x"}]}
    )
    for given in ({}, {"adapt": False}, {"adapt": True}, {"adapt": None}):
        assert server.post(path, max_tokens=3, **asks, **given).status_code == 200
    assert [one.adapt for one in sent] == [True, False, True, True]
    assert server.post(path, adapt="never", **asks).json()["error"]["param"] == "adapt"
