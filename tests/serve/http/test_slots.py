"""The endpoint in front of the slot engine and `mini`: texts are those of `jaxspec.decode`."""

import concurrent.futures
import itertools

import pytest
from serve_toys import make
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.io.text.tokenizer import load_tokenizer

openai = pytest.importorskip("openai")
http_server = pytest.importorskip("http_server")

PROMPTS = ("The cat sat on the", "def add(a, b):\n    return", "1 2 3 4 5 6", "Once upon a time")
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
CHAT = [{"role": "user", "content": "What is 2 + 2?"}]


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(scope="module")
def server(mini):
    # A fixed rule drafts in every round, whatever the rounds cost here.
    engine = make(mini, rounds=4)
    tokenizer = load_tokenizer(mini.spec.tokenizer)
    with http_server.running(engine, tokenizer, model="mini", visit_timeout=300) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=9) as one:
        yield one


# A text does not depend on the others in a batch, so one program makes all that are compared.


@pytest.fixture(scope="module")
def sampled(mini):
    """Sampled answers of 30 tokens: of each prompt, and two more samples of the first one."""
    prompts = [*PROMPTS, PROMPTS[0], PROMPTS[0]]
    return jaxspec.decode(
        mini, prompts, drafter="ar", capacity=320, max_new_tokens=30, **group_options(**SAMPLED)
    )


@pytest.fixture(scope="module")
def greedy(mini):
    """Greedy answers of 40 tokens: of each prompt, and of the chat."""
    return jaxspec.decode(mini, [*PROMPTS, CHAT], drafter="ar", capacity=320, max_new_tokens=40)


def ask(client, prompt, stream=False, **options):
    """Return the text of a completion."""
    answer = client.completions.create(model="mini", prompt=prompt, stream=stream, **options)
    parts = answer if stream else [answer]
    return "".join(part.choices[0].text for part in parts)


@pytest.mark.thorough
def test_a_seed_gives_the_same_text_under_any_load(sampled, client):
    alone = [one.text for one in sampled[: len(PROMPTS)]]
    assert [ask(client, prompt, max_tokens=30, **SAMPLED) for prompt in PROMPTS] == alone
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = []
        for number, prompt in itertools.product(range(6), PROMPTS):
            others = {"temperature": 1.0, "seed": number} if number % 2 else SAMPLED
            stream = number % 3 == 0
            jobs.append(pool.submit(ask, client, prompt, stream, max_tokens=30, **others))
        texts = [job.result() for job in jobs]
    for number in range(0, 6, 2):
        assert texts[4 * number : 4 * number + 4] == alone


def test_samples_are_those_of_equal_prompts(sampled, client):
    expected = [sampled[0], *sampled[len(PROMPTS) :]]
    done = client.completions.create(model="mini", prompt=PROMPTS[0], n=3, max_tokens=30, **SAMPLED)
    assert [one.text for one in done.choices] == [one.text for one in expected]


def test_chat(greedy, client):
    out = greedy[-1]
    done = client.chat.completions.create(model="mini", messages=CHAT, max_tokens=40, temperature=0)
    assert done.choices[0].message.content == out.text
    assert done.usage.completion_tokens == len(out.tokens)
    assert done.choices[0].finish_reason == out.stats.finish_reason


def test_stop_string(greedy, client):
    whole = greedy[3].text
    stop = whole[25:28]
    for stream in (False, True):
        text = ask(client, PROMPTS[3], stream, max_tokens=40, temperature=0, stop=stop)
        assert text == whole[: whole.index(stop)]


def test_penalties_and_a_least_number_of_tokens(mini, greedy, client):
    """Beside a request without; the stop string is one of the first tokens' text."""
    prompt, stop = PROMPTS[3], greedy[3].text[:3]
    given = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "stop": stop}
    more = {"repetition_penalty": 1.1, "min_tokens": 12}
    out = jaxspec.decode(
        mini,
        prompt,
        drafter="ar",
        capacity=320,
        max_new_tokens=40,
        **group_options(**given, **more),
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asks = (given | {"extra_body": more}, {})
        texts = [
            pool.submit(ask, client, prompt, max_tokens=40, temperature=0, **one) for one in asks
        ]
    assert [text.result() for text in texts] == [out.text, greedy[3].text]
    assert len(out.tokens) > 12 and out.text != greedy[3].text


def test_makers_of_tokens_and_trees(server):
    body = {"prompt": PROMPTS[1], "max_tokens": 30, "temperature": 0, "trace": True}
    choice = server.post(**body).json()["choices"][0]
    trace = choice["trace"]
    assert "".join(one["text"] for one in trace["pieces"]) == choice["text"]
    assert any(one["drafted"] for one in trace["pieces"])
    ends = [one["before"] + len(one["path"]) for one in trace["rounds"]]
    assert [one["before"] for one in trace["rounds"]][1:] == ends[:-1] and ends[-1] == 30


def test_a_client_that_leaves_frees_its_slot(server):
    body = {"prompt": PROMPTS[0], "max_tokens": 250, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    http_server.wait_until(lambda: server.engine.idle)
    assert server.engine.counters()["finished"]["abort"] == 1
    assert not server.service.driver.busy


def test_nothing_compiles_for_requests(client, server):
    def compiled():
        return server.engine.counters()["compiles_after_warm_up"]

    before = compiled()  # by `jaxspec.decode`, which runs in this process
    filters = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 4}
    for options in ({"temperature": 0}, SAMPLED, {"presence_penalty": 1, "extra_body": filters}):
        for prompt in PROMPTS:
            ask(client, prompt, max_tokens=9, **options)
    ask(client, PROMPTS[0] * 30, extra_body={"trace": True, "drafter": "ar"}, stop="zz")
    assert compiled() == before


def test_poison_reaches_nobody_else(greedy, client):
    """Requests that are refused change no text of those that run."""
    expected = greedy[2].text
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        good = [
            pool.submit(ask, client, PROMPTS[2], max_tokens=40, temperature=0) for _ in range(3)
        ]
        for bad in ([10**9], [-1], "x" * 9000, ""):
            with pytest.raises(openai.BadRequestError):
                ask(client, bad)
        assert [job.result() for job in good] == [expected] * 3
