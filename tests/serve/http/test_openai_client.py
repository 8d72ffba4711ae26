"""The official client against a server with a fake engine."""

import dataclasses

import pytest
from fake_engine import ByteTokenizer, expected_tokens

from jaxspec.serve.requests import QueueFull, ServeRequest

openai = pytest.importorskip("openai")
http_server = pytest.importorskip("http_server")

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server():
    with http_server.running() as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def text_of(request: ServeRequest) -> str:
    return ByteTokenizer().decode(expected_tokens(request))


def chat_request(**settings) -> ServeRequest:
    return ServeRequest(tuple(ByteTokenizer().chat(MESSAGES)), **settings)


def test_chat(client):
    done = client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=20, temperature=0
    )
    expected = chat_request(max_new_tokens=20)
    assert done.choices[0].message.content == text_of(expected)
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 20
    assert done.usage.prompt_tokens == len(expected.tokens)
    assert done.usage.total_tokens == 20 + len(expected.tokens)
    assert done.metrics["speculative_decoding"]["mean_acceptance_length"] > 1


def test_answers_tell_drafts_from_rounds(client):
    """Of 19 tokens, 3 a visit, the first visit has no round, and the last one no draft."""
    done = client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=19, temperature=0
    )
    counts = done.metrics["speculative_decoding"]
    assert counts == {
        "num_rounds": 6,
        "num_drafts": 5,
        "num_draft_tokens": 20,
        "num_accepted_tokens": 10,
        "mean_acceptance_length": 1 + 10 / 6,
    }


def test_chat_stream(client):
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=MESSAGES,
            max_completion_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert said == text_of(chat_request(max_new_tokens=20))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_chunks_may_have_the_usage_so_far(client):
    """Load tools ask for it by vLLM's name."""
    *parts, last = client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_tokens=20,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [part.usage.completion_tokens for part in parts]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 20
    assert len(set(counts)) > 2 and last.choices == []
    assert {one.usage.prompt_tokens for one in (*parts, last)} == {last.usage.prompt_tokens}


def test_chat_stream_of_samples(client):
    """Each sample has its role, its text and its finish; the usage counts all of them."""
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=MESSAGES,
            n=3,
            seed=2,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *parts, last = chunks
    expected = chat_request(max_new_tokens=30, temperature=1.0, seed=2)
    for index in range(3):
        mine = [one.choices[0] for one in parts if one.choices[0].index == index]
        assert [one.delta.role for one in mine] == ["assistant"] + [None] * (len(mine) - 1)
        said = "".join(one.delta.content or "" for one in mine)
        assert said == text_of(dataclasses.replace(expected, sequence=index))
        assert [one.finish_reason for one in mine] == [None] * (len(mine) - 1) + ["length"]
    assert last.usage.completion_tokens == 90
    assert last.usage.prompt_tokens == len(expected.tokens)


@pytest.mark.parametrize("prompt", ["some text", [5, 6, 7]])
def test_completion(client, prompt):
    ids = tuple(prompt) if isinstance(prompt, list) else tuple(prompt.encode())
    done = client.completions.create(model="fake", prompt=prompt, temperature=0)
    expected = ServeRequest(ids, max_new_tokens=16)
    assert done.choices[0].text == text_of(expected) and done.usage.completion_tokens == 16


def test_completion_stream_of_several_prompts(client):
    texts = {}
    for chunk in client.completions.create(
        model="fake", prompt=["one", "two"], temperature=0, max_tokens=30, stream=True
    ):
        index = chunk.choices[0].index
        texts[index] = texts.get(index, "") + chunk.choices[0].text
    assert texts == {
        i: text_of(ServeRequest(tuple(word), max_new_tokens=30))
        for i, word in enumerate((b"one", b"two"))
    }


def test_samples_have_their_own_sequence(client):
    done = client.completions.create(model="fake", prompt="x", n=3, seed=7, max_tokens=12)
    expected = ServeRequest(tuple(b"x"), 12, temperature=1.0, seed=7)
    assert [one.text for one in done.choices] == [
        text_of(dataclasses.replace(expected, sequence=i)) for i in range(3)
    ]
    assert done.usage.completion_tokens == 36 and done.usage.prompt_tokens == 1


def test_seed_repeats_and_no_seed_does_not(client):
    def sample(**given):
        return client.completions.create(model="fake", prompt="x", max_tokens=30, **given)

    assert sample(seed=3).choices[0].text == sample(seed=3).choices[0].text
    assert sample().choices[0].text != sample().choices[0].text


def test_stop_string_is_cut_and_never_shown(client):
    whole = text_of(ServeRequest(tuple(b"stop"), 60))
    stop = whole[20:23]
    for stream in (False, True):
        answer = client.completions.create(
            model="fake", prompt="stop", max_tokens=60, temperature=0, stop=[stop], stream=stream
        )
        parts = list(answer) if stream else [answer]
        assert "".join(one.choices[0].text for one in parts) == whole[: whole.index(stop)]
        assert parts[-1].choices[0].finish_reason == "stop"


def test_settings_reach_the_engine(client, server):
    client.completions.create(
        model="fake",
        prompt="p",
        temperature=0.5,
        top_p=0.9,
        seed=11,
        stop="zz",
        user="somebody",
        logit_bias={"5": 1.5, "10": -100},
        presence_penalty=-0.5,
        frequency_penalty=2,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "ignore_eos": True,
            "min_tokens": 3,
            "stop_token_ids": [9],
            "drafter": "ar",
        },
    )
    assert server.engine.seen[-1] == ServeRequest(
        (112,),
        16,
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        repetition_penalty=1.2,
        seed=11,
        stop=("zz", 9),
        ignore_eos=True,
        min_tokens=3,
        drafter="ar",
        logit_bias=((5, 1.5), (10, -100.0)),
    )


def test_template_variables_reach_the_template(client, server):
    variables = {"enable_thinking": False}
    client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_tokens=2,
        extra_body={"chat_template_kwargs": variables},
    )
    assert server.engine.seen[-1].tokens == tuple(ByteTokenizer().chat(MESSAGES, **variables))


def test_a_chat_may_fill_the_slot(client, server):
    client.chat.completions.create(model="fake", messages=MESSAGES, temperature=0)
    request = server.engine.seen[-1]
    assert len(request.tokens) + request.max_new_tokens == server.engine.room


def test_models(client):
    assert [one.id for one in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").max_model_len == 512


def test_errors_have_their_own_classes(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="fake", prompt="x", suffix="y")
    assert error.value.code == "unsupported_parameter" and error.value.param == "suffix"
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="other", prompt="x")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="fake", prompt="x" * 600)
    assert error.value.code == "context_length_exceeded"


def test_key():
    with http_server.running(key="sesame") as server:
        for key, works in (("sesame", True), ("wrong", False), ("Sesame", False)):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if works:
                    assert client.completions.create(model="fake", prompt="x").choices
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.completions.create(model="fake", prompt="x")
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/health").status_code == 200


def test_a_full_queue_is_a_rate_limit_error_and_the_client_tries_again():
    engine, refused = http_server.FakeEngine(), []
    submit = engine.submit

    def refuse_twice(request):
        if len(refused) < 2:
            refused.append(request)
            raise QueueFull(0.5)
        return submit(request)

    engine.submit = refuse_twice
    with (
        http_server.running(engine) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model="fake", prompt="x")
        assert error.value.response.headers["Retry-After"] == "1"
        retrying = client.with_options(max_retries=1)
        assert retrying.completions.create(model="fake", prompt="x").choices
        assert len(refused) == 2
