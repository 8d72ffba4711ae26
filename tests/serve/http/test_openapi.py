"""The schema says what the server accepts; tokens of texts and chats, in vLLM's form."""

import json

import pytest
from fake_engine import EOS

http_server = pytest.importorskip("http_server")
jsonschema = pytest.importorskip("jsonschema")

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    with http_server.running() as one:
        yield one


@pytest.fixture(scope="module")
def schema(server):
    return server.http.get("/openapi.json").json()


def validate(schema, value, place):
    """Whether a value has the schema at a place."""
    whole = {"$ref": "#/components/schemas/" + place, "components": schema["components"]}
    return jsonschema.Draft202012Validator(whole).is_valid(value)


BODIES = [
    ({}, True),
    ({"max_tokens": None, "unknown": None}, True),
    ({"unknown": 1}, False),
    ({"temperature": 2}, True),
    ({"temperature": 2.5}, False),
    ({"max_tokens": 600}, False),
    ({"max_tokens": 3}, True),
    ({"stop": "a"}, True),
    ({"stop": ["a", "b"]}, True),
    ({"stop": ["a"] * 5}, False),
    ({"stop": ""}, False),
    ({"logit_bias": {"5": 1, "0": -100}}, True),
    ({"logit_bias": {"05": 1}}, False),
    ({"logit_bias": {"5": 101}}, False),
    ({"stop_token_ids": [5]}, True),
    ({"stream": True, "stream_options": {"include_usage": True}}, True),
    ({"stream": True, "stream_options": {"usage": True}}, False),
    ({"stream_options": {"include_usage": True}}, False),
    ({"n": 129}, False),
    ({"metadata": {"a": "b"}, "store": True}, True),
    ({"metadata": {"a": 1}}, False),
    ({"best_of": 1, "service_tier": "auto", "response_format": {"type": "text"}}, True),
    ({"best_of": 2}, False),
    ({"response_format": {"type": "json_object"}}, False),
    ({"tools": [{"type": "function"}], "tool_choice": "none"}, True),
    ({"tools": [{"type": "function"}]}, False),
    ({"tools": []}, True),
    ({"prompt_logprobs": 3}, True),
]
OF_TEXTS = [
    ({"prompt": "x", "echo": True, "logprobs": 5, "max_tokens": 0}, True),
    ({"prompt": [1, 2]}, True),
    ({"prompt": ["a", "b"]}, True),
    ({"prompt": [[1], [2, 3]]}, True),
    ({"prompt": []}, False),
    ({"prompt": ["a", 5]}, False),
    ({"prompt": [1.0, EOS], "max_tokens": 2.0, "logprobs": False}, True),
    ({"prompt": [EOS + 1]}, False),
    ({"prompt": [1, 1.5]}, False),
    ({"prompt": "x", "logprobs": 6}, False),
    ({"prompt": "x", "messages": HI}, False),
    ({}, False),
]
OF_CHATS = [
    ({"messages": HI, "logprobs": True, "top_logprobs": 20}, True),
    ({"messages": HI, "top_logprobs": 2}, False),
    ({"messages": HI, "reasoning_effort": "none", "verbosity": "medium"}, True),
    ({"messages": HI, "reasoning_effort": "high"}, False),
    ({"messages": HI, "echo": True}, False),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, True),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, False),
    ({"messages": []}, False),
]


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        *(("/v1/completions", {"prompt": "x"} | body, right) for body, right in BODIES),
        *((CHAT, {"messages": HI} | body, right) for body, right in BODIES),
        *(("/v1/completions", body, right) for body, right in OF_TEXTS),
        *((CHAT, body, right) for body, right in OF_CHATS),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else None,
)
def test_the_schema_accepts_what_the_server_accepts(server, schema, path, body, right):
    response = server.post(path, **{"max_tokens": 1} | body)
    assert response.status_code == (200 if right else 400), response.text
    name = "ChatParameters" if path == CHAT else "TextParameters"
    assert validate(schema, body, name) == right
    if not right:
        assert validate(schema, response.json(), "ErrorBody")
    elif "stream" not in body:
        answer = "ChatAnswer" if path == CHAT else "TextAnswer"
        assert validate(schema, response.json(), answer)


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ({}, False),
        ({"prompt": None}, False),
        ({"prompt": "x", "return_token_strs": True, "add_special_tokens": True}, True),
        ({"prompt": "x", "messages": HI}, False),
        ({"prompt": "x", "add_generation_prompt": True}, False),
        ({"messages": HI, "add_generation_prompt": True, "add_special_tokens": False}, True),
        ({"messages": HI, "add_special_tokens": True}, False),
        ({"prompt": "x", "truncate": True}, False),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else None,
)
def test_the_schema_of_tokenization(server, schema, body, right):
    assert (server.post("/tokenize", **body).status_code == 200) == right
    assert validate(schema, body, "TokenizeParameters") == right


def test_the_schema_names_all_statuses_and_no_others(schema):
    for path, extra in ((CHAT, {"500", "503", "504"}), ("/tokenize", set())):
        found = schema["paths"][path]["post"]["responses"]
        assert found.keys() == {"200", "400", "401", "404", "413", "429"} | extra
        for status in found.keys() - {"200"}:
            place = found[status]["content"]["application/json"]["schema"]["$ref"]
            assert place.endswith("/ErrorBody")
    assert set(schema["paths"]) == {
        *(CHAT, "/v1/completions", "/v1/models", "/v1/models/{name}"),
        *(
            "/tokenize",
            "/tokenizer_info",
            "/detokenize",
            "/health",
            "/ready",
            "/metrics",
            "/version",
        ),
    }
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_the_schema_says_what_the_key_guards():
    with http_server.running(key="sesame", page=False) as server:
        found = server.http.get("/openapi.json").json()
        assert found["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        for path, operations in found["paths"].items():
            for method, operation in operations.items():
                guarded = "security" in operation
                url = path.replace("{name}", "fake")
                assert (server.http.request(method, url).status_code == 401) == guarded, path


def test_no_page_loads_the_schema_with_scripts_from_elsewhere(server):
    assert {server.http.get(path).status_code for path in ("/docs", "/redoc")} == {404}


def test_tokens_of_a_text(server):
    found = server.post("/tokenize", prompt="hé", model="fake").json()
    assert found == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [*"hé".encode()],
        "token_strs": None,
    }
    found = server.post("/tokenize", prompt="", add_special_tokens=False, return_token_strs=True)
    assert found.json()["tokens"] == [] and found.json()["token_strs"] == []
    found = server.post("/tokenize", prompt="hi", return_token_strs=True).json()
    assert found["token_strs"] == ["0x68", "0x69"]


def test_tokens_of_a_chat_are_those_that_a_request_has(server):
    server.post(CHAT, messages=HI, chat_template_kwargs={"a": 1}, max_tokens=1)
    asked = {"messages": HI, "chat_template_kwargs": {"a": 1}}
    found = server.post("/tokenize", **asked).json()
    assert found["tokens"] == list(server.engine.seen[-1].tokens)
    assert found["count"] == len(found["tokens"])
    bare = server.post("/tokenize", messages=HI, add_generation_prompt=False).json()["tokens"]
    assert b"add_generation_prompt=False" in bytes(bare)


def test_the_text_of_tokens(server):
    ids = server.post("/tokenize", prompt="h€").json()["tokens"]
    assert server.post("/detokenize", tokens=ids).json() == {"prompt": "h€"}
    assert server.post("/detokenize", tokens=[104, EOS]).json() == {"prompt": "h<eos>"}
    assert server.post("/detokenize", tokens=[]).json() == {"prompt": ""}


def test_the_tokenizer_is_described(server):
    """lm-eval asks for it, and then needs no tokenizer of its own."""
    assert server.http.get("/tokenizer_info").json()["eos_token"] == "<eos>"


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "invalid_value", "prompt"),
        ("/tokenize", {"messages": []}, "invalid_value", "messages"),
        ("/tokenize", {"prompt": 5}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "x" * 140_000}, "context_length_exceeded", "prompt"),
        ("/tokenize", {"prompt": "x", "truncate": True}, "unknown_parameter", "truncate"),
        (
            "/tokenize",
            {"prompt": "x", "add_generation_prompt": True},
            "unsupported_parameter",
            "add_generation_prompt",
        ),
        (
            "/tokenize",
            {"messages": HI, "add_special_tokens": True},
            "unsupported_parameter",
            "add_special_tokens",
        ),
        (
            "/tokenize",
            {"messages": HI, "chat_template_kwargs": {"tokenize": True}},
            "invalid_value",
            "chat_template_kwargs",
        ),
        ("/detokenize", {}, "missing_required_parameter", "tokens"),
        ("/detokenize", {"tokens": [EOS + 1]}, "invalid_value", "tokens"),
        ("/detokenize", {"tokens": [-1]}, "invalid_value", "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "invalid_value", "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model_not_found", "model"),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else None,
)
def test_what_cannot_be_tokenized(server, path, body, code, param):
    headers = {"Content-Type": "application/json"}
    response = server.http.post(path, content=json.dumps(body), headers=headers)
    error = response.json()["error"]
    assert response.status_code == (404 if code == "model_not_found" else 400)
    assert (error["code"], error["param"]) == (code, param), error


def test_tokens_need_no_engine_but_a_tokenizer():
    with http_server.running(wait=False) as server:
        server.service.draining = True
        http_server.wait_until(lambda: server.server.started)
        assert server.post("/tokenize", prompt="x").json()["tokens"] == [120]
        server.service.translator._tokenizer = None
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            assert server.post(path, **body).json()["error"]["code"] == "no_tokenizer"
        assert server.http.get("/tokenizer_info").json()["error"]["code"] == "no_tokenizer"
