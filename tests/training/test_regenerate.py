import json

import numpy as np
import pytest

import jaxspec
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.io.hub import ZOO
from training.data.chat import make_format
from training.data.documents import DataError
from training.data.encode import encode
from training.data.prompts import PromptToAnswer, group_prompts, make_prompts
from training.data.samples import DataRecord, read_records
from training.regenerate import RegenerateOptions, regenerate
from training.train_target import init_target

SIZES = {
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "ffn_size": 16,
}


@pytest.fixture(scope="module")
def chat():
    return make_format("mini")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """An untrained target with the tokenizer of `mini`."""
    config = TargetConfig(**SIZES, vocab_size=4096, max_positions=128, tie_embeddings=True)
    folder = tmp_path_factory.mktemp("target")
    jaxspec.save(
        Params(init_target(config, 0), {}, Spec(config, eos=(0,), tokenizer=str(ZOO / "mini"))),
        folder,
    )
    return str(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    sums = [{"domain": "math", "text": f"Question: {i} + {i}?\nAnswer: {2 * i}."} for i in range(8)]
    prose = [
        {"domain": "prose", "text": "".join(f"On day {i} the sea was calm.\n" for i in range(200))}
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in sums + prose))
    return path


def options(target, corpus, out, **changed):
    settings = (
        dict(limit=10, temperatures=(0.0, 1.0), max_new_tokens=6, prompt_tokens=(4, 20), batch=4)
        | changed
    )
    return RegenerateOptions(target, corpus, out, **settings)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.thorough
def test_a_killed_run_continues_to_the_same_records(target, corpus, tmp_path, chat):
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert regenerate(options(target, corpus, whole)) == 10
    settings, *records = lines(whole)
    assert (
        settings["settings"]["temperatures"] == [0.0, 1.0]
        and len({record["id"] for record in records}) == 10
    )
    assert {record["domain"] for record in records} == {"math", "prose"}

    text = whole.read_bytes()
    killed.write_bytes(text[: len(text) * 2 // 3])
    before = killed.read_bytes().count(b"\n") - 1
    assert 0 < before < 10 and not killed.read_bytes().endswith(b"\n")
    assert regenerate(options(target, corpus, killed)) == 10 - before
    assert killed.read_bytes() == text
    assert regenerate(options(target, corpus, killed)) == 0
    for size in (5, 0):  # stopped before anything was whole
        killed.write_bytes(text[:size])
        assert regenerate(options(target, corpus, killed)) == 10
        assert killed.read_bytes() == text
    assert (
        regenerate(options(target, corpus, killed, limit=12)) == 2
    )  # more prompts, the old ones among them
    assert killed.read_bytes().startswith(text) and len(lines(killed)) == 13

    params = jaxspec.load(target)
    read = read_records(whole)
    for record, sample in zip(records, encode(read, chat), strict=True):
        length = record["prompt_length"]
        prompts = [
            record["tokens"][:length]
        ] * 4  # the compiled batch; the first of them is what decoding it alone gives
        output = jaxspec.decode(
            params, prompts, temperature=record["temperature"], max_new_tokens=6
        )[0]
        assert record["tokens"][length:] == output.tokens and record["response"] == output.text
        assert record["finish_reason"] == output.stats.finish_reason
        assert sample.tokens.tolist() == record["tokens"] and sample.loss_mask.sum() == len(
            output.tokens
        )


@pytest.mark.thorough
def test_a_drafter_changes_no_record(target, corpus, tmp_path, monkeypatch):
    asked = []
    decode = jaxspec.decode
    monkeypatch.setattr(
        jaxspec,
        "decode",
        lambda *given, **rest: asked.append(rest["drafter"]) or decode(*given, **rest),
    )
    plain, drafted = tmp_path / "plain.jsonl", tmp_path / "drafted.jsonl"
    regenerate(options(target, corpus, plain, limit=4))
    regenerate(options(target, corpus, drafted, limit=4, drafter="prompt_lookup"))
    assert drafted.read_bytes() == plain.read_bytes()
    assert set(asked) == {"ar", "prompt_lookup"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"temperatures": (), "temperature": 0.5},
            r"made with temperatures=\[0.0, 1.0\], not \[0.5\]",
        ),
        ({"seed": 1}, "made with seed=0, not 1"),
        ({"max_new_tokens": 7}, "made with max_new_tokens=6, not 7"),
        ({"raw_prompts": True}, "made with raw_prompts=False, not True"),
    ],
)
def test_other_settings_are_refused_and_named(target, corpus, tmp_path_factory, change, message):
    out = tmp_path_factory.getbasetemp() / "refused.jsonl"
    if not out.exists():
        regenerate(options(target, corpus, out, limit=2, temperatures=(0.0, 1.0)))
    content = out.read_bytes()
    with pytest.raises(DataError, match=message):
        regenerate(options(target, corpus, out, limit=2, **change))
    assert out.read_bytes() == content


def test_files_of_others_are_left_alone(target, corpus, tmp_path):
    for content in ('{"text": "mine"}\n', "no JSON at all\n", "no line either"):
        (tmp_path / "mine.jsonl").write_text(content)
        with pytest.raises(DataError, match="was not written by `jaxspec regenerate`"):
            regenerate(options(target, corpus, tmp_path / "mine.jsonl"))
        assert (tmp_path / "mine.jsonl").read_text() == content
    with pytest.raises(DataError, match="no folder .*nowhere"):
        regenerate(options(target, corpus, tmp_path / "nowhere" / "out.jsonl"))


def test_passages_begin_at_lines_and_do_not_depend_on_the_limit(corpus, chat):
    records = read_records(corpus)
    settings = dict(
        longest=50,
        domains={"prose": 3.0, "math": 1.0},
        prompt_tokens=(4, 20),
        temperatures=(0.0, 0.7),
    )
    few, many = (make_prompts(records, chat, limit=limit, **settings) for limit in (8, 40))
    assert [prompt.domain for prompt in few] == ["prose"] * 6 + ["math"] * 2
    assert [prompt.domain for prompt in many] == ["prose"] * 30 + [
        "math"
    ] * 8  # of ten: there are no more questions
    assert [prompt for prompt in many if prompt.id in {p.id for p in few}] == few
    prose = [prompt for prompt in many if prompt.domain == "prose"]
    assert all(
        4 <= len(prompt.ids) <= 20 and prompt.content.startswith("On day") for prompt in prose
    )
    assert len({prompt.content for prompt in prose}) > 20 and {
        prompt.temperature for prompt in prose
    } == {0.0, 0.7}
    assert all(prompt.content.endswith("?\nAnswer:") for prompt in many if prompt.domain == "math")


def test_conversations_are_asked_up_to_their_first_answer(chat):
    hello, why = {"role": "user", "content": "Hello"}, {"role": "user", "content": "Why?"}
    answer = {"role": "assistant", "content": "Hm."}
    records = [
        DataRecord("1", messages=[answer, hello, answer, why]),
        DataRecord("2", messages=[hello]),
        DataRecord("3", prompt="Hello"),
        DataRecord("4", prompt=[hello]),
        DataRecord("5", tokens=[9, 8, 7], prompt_length=2),
        DataRecord("6", prompt="word " * 100),
    ]
    prompts = make_prompts(records, chat, longest=40, prompt_tokens=(4, 20))
    texts = sorted(chat.tokenizer.decode(prompt.ids) for prompt in prompts)
    asked = "Question: Hello\nAnswer:"
    assert texts == sorted(
        [asked] * 3 + ["Answer: Hm.<|endoftext|>" + asked, chat.tokenizer.decode([9, 8])]
    )
    raw = make_prompts(
        records[2:3], make_format("mini", raw_prompts=True), longest=40, prompt_tokens=(4, 20)
    )
    assert raw[0].content == "Hello" and chat.tokenizer.decode(raw[0].ids) == "Hello"
    with pytest.raises(DataError, match="1: the conversation has no message of the user"):
        make_prompts([DataRecord("1", messages=[answer])], chat, longest=40, prompt_tokens=(4, 20))


def test_impossible_choices_of_prompts_are_named(corpus, chat):
    records = read_records(corpus)
    for change, message in (
        ({"limit": 4, "domains": {"code": 1.0}}, "no domain 'code': they have 'math', 'prose'"),
        ({"limit": 4, "domains": {"math": 0.0}}, "share of domain 'math' is 0"),
        ({"domains": {"math": 1.0}}, "need a limit"),
        ({"limit": 0}, "limit is 0"),
        ({"prompt_tokens": (30, 60)}, "prompt_tokens is 30 to 60"),
    ):
        with pytest.raises(DataError, match=message):
            make_prompts(records, chat, **{"longest": 50, "prompt_tokens": (4, 20), **change})
    with pytest.raises(DataError, match="no prompts in these records"):
        make_prompts([DataRecord("1", text="Short.")], chat, longest=50, prompt_tokens=(10, 20))


def test_batches_share_few_lengths():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 200, 100)
    prompts = [
        PromptToAnswer(str(i), "ab"[i % 2], "", [0] * int(n), [0.0, 1.0][i % 3 == 0])
        for i, n in enumerate(lengths)
    ]
    batches = group_prompts(prompts, 8, seed=0)
    assert sorted(prompt.id for batch in batches for prompt in batch) == sorted(
        prompt.id for prompt in prompts
    )
    assert all(len({prompt.temperature for prompt in batch}) == 1 for batch in batches)
    assert sum(len(batch) < 8 for batch in batches) <= 2  # one rest for each temperature
    widths = [
        {max(32, 1 << (len(prompt.ids) - 1).bit_length()) for prompt in batch} for batch in batches
    ]
    assert sum(len(width) > 1 for width in widths) <= 2 * 3
