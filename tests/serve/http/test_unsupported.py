"""Parameters that change no answer are accepted; those that would and cannot are refused by name."""

import json

import pytest

http_server = pytest.importorskip("http_server")
unsupported = pytest.importorskip("jaxspec.serve.http.completions.unsupported")

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
check_error = http_server.check_error


@pytest.fixture(scope="module")
def server():
    with http_server.running() as one:
        yield one


# A value of each that asks for something.
ASKED = {
    "audio": {"voice": "alloy"},
    "best_of": 2,
    "echo": True,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["audio"],
    "response_format": {"type": "json_object"},
    "service_tier": "flex",
    "suffix": "x",
    "tool_choice": "required",
    "tools": [{"type": "function"}],
}


@pytest.mark.parametrize("name", sorted(unsupported.UNSUPPORTED))
def test_unsupported_parameters_are_refused_unless_they_ask_for_nothing(server, name):
    why, neutral = unsupported.UNSUPPORTED[name]
    refused = server.post(CHAT, messages=HI, **{name: ASKED.get(name, "something")})
    check_error(refused, 400, "unsupported_parameter", name)
    assert refused.json()["error"]["message"].endswith(f"not supported by this server: {why}.")
    for value in (None, *neutral):
        assert server.post(CHAT, messages=HI, max_tokens=1, **{name: value}).status_code == 200


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": {"app": "a", "turn": "1"}},
        {"store": True},
        {"store": False, "user": "a", "safety_identifier": "b", "prompt_cache_key": "c"},
        {"tool_choice": "none"},
        {"tool_choice": "none", "tools": [TOOL], "parallel_tool_calls": False},
        {"function_call": "none", "functions": [TOOL["function"]]},
    ],
    ids=lambda given: " ".join(given),
)
def test_what_changes_no_answer_is_accepted(server, given):
    """A model that must not call tools is not told of any."""
    plain = server.post(CHAT, messages=HI, temperature=0, max_tokens=9).json()["choices"]
    tokens = server.engine.seen[-1].tokens
    assert (
        server.post(CHAT, messages=HI, temperature=0, max_tokens=9, **given).json()["choices"]
        == plain
    )
    assert server.engine.seen[-1].tokens == tokens


def test_a_misspelt_parameter_is_named(server):
    refused = server.post(CHAT, messages=HI, temprature=1)
    check_error(refused, 400, "unknown_parameter", "temprature")
    assert refused.json()["error"]["message"].endswith("Did you mean 'temperature'?")


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": "a"}, "invalid_value", "metadata"),
        ({"metadata": {str(i): "a" for i in range(17)}}, "invalid_value", "metadata"),
        ({"store": "yes"}, "invalid_value", "store"),
        ({"tools": [TOOL]}, "unsupported_parameter", "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "unsupported_parameter", "tools"),
        ({"tools": "look_up", "tool_choice": "none"}, "unsupported_parameter", "tools"),
        ({"functions": [TOOL], "tool_choice": "none"}, "unsupported_parameter", "functions"),
        ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort"),
        ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "unsupported_parameter", "prompt_logprobs"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_what_would_change_an_answer_is_not(server, given, code, param):
    check_error(server.post(CHAT, messages=HI, **given), 400, code, param)


def test_no_effort_of_reasoning_is_a_variable_of_the_template(server):
    def ask(**more):
        server.post(CHAT, messages=HI, max_tokens=1, reasoning_effort="none", **more)
        return bytes(server.engine.seen[-1].tokens)

    assert b"enable_thinking=False" in ask()
    assert b"enable_thinking=True" in ask(chat_template_kwargs={"enable_thinking": True})


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/v1/moderations"])
def test_endpoints_that_are_not_served_say_so(server, path):
    check_error(server.post(path, input="x"), 400, "unsupported_endpoint")
