import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import jaxspec
from jaxspec.bench.measure.conversations import ask_conversations, number_questions
from jaxspec.bench.measure.decodes import check_prompts
from jaxspec.io.text.prompt_files import (
    PASSAGE_CHARACTERS,
    PROMPT_TOKENS,
    LabelledPrompt,
    read_prompts,
)

EDITS = Path(__file__).parents[2] / "benchmarks" / "prompts" / "code_edits.jsonl"


class Words:
    """A tokenizer with a token per word."""

    def encode(self, text):
        return [hash(word) for word in text.split()]


def write(path, *records):
    data = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


def test_the_prompts_that_ask_for_edits():
    """Each asks for one change of a piece of code, which the answer repeats."""
    prompts = read_prompts(EDITS, None, chat=True)
    assert len(prompts) == 30 and {one.domain for one in prompts} == {"code-edit"}
    texts = [one.content[-1]["content"] for one in prompts]
    assert len(set(texts)) == 30 and all(text.count("```") == 2 for text in texts)


def test_record_forms(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"prompt": "def f():", "task_id": 1},
        {"turns": ["first", "second"], "category": "writing"},
        {"question": "1 + 1?", "answer": "2"},
        {"domain": "math", "text": "Question: 2 + 2?\nAnswer: It is 4.\nAnswer: again"},
    )
    prompts = [(prompt.domain, prompt.content) for prompt in read_prompts(path, None)]
    assert prompts == [
        ("set", "def f():"),
        ("set", "Question: 1 + 1?\nAnswer:"),
        ("writing", "first"),
        ("math", "Question: 2 + 2?\nAnswer:"),
    ]


def test_chat_wraps_whole_prompts(tmp_path):
    path = write(tmp_path / "set.jsonl", {"prompt": "hello"})
    assert read_prompts(path, None, chat=True)[0].content == [{"role": "user", "content": "hello"}]


class Chat(Words):
    has_chat_template = True


def test_conversations_end_before_their_first_answer(tmp_path):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path = write(
        tmp_path / "set.jsonl",
        {
            "messages": [
                *asked,
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Why?"},
            ],
            "id": "x",
            "turns": ["Hi"],
        },
        {"conversations": [{"from": "human", "value": "Ho"}, {"from": "gpt", "value": "Hello"}]},
    )
    first, second = read_prompts(path, Chat(), chat=None)
    assert (first.content, first.later, first.question) == (asked, ("Why?",), "x")
    assert second.content == [{"role": "user", "content": "Ho"}]
    assert [prompt.content for prompt in read_prompts(path, None)] == ["Hi", "Ho"]


def test_published_conversations_are_read_like_training_data(tmp_path):
    """A JSON array with a byte order mark, a greeting, roles of other names, an empty one."""
    talk = [
        {"from": "gpt", "value": "Welcome!"},
        {"from": "human", "value": "Hi"},
        {"from": "chatgpt", "value": "Hello"},
        {"from": "human", "value": "Why?"},
    ]
    records = [
        {"conversations": []},
        {"conversations": talk},
        {"instruction": "Add.", "input": "2"},
    ]
    path = tmp_path / "set.json"
    path.write_text(json.dumps(records), encoding="utf-8-sig")
    first, second = read_prompts(path, Chat(), chat=None)
    assert [one["content"] for one in first.content] == ["Welcome!", "Hi"]
    assert first.later == ("Why?",) and first.question is None
    assert second.content == [{"role": "user", "content": "Add.\n\n2"}]


def test_public_sets_are_recognised_and_go_into_the_template(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"task_id": "HumanEval/7", "prompt": "def f():", "entry_point": "f"},
        {"question": "1 + 1?", "answer": "It is 2. #### 2"},
        {"question_id": 81, "category": "writing", "turns": ["first", "second", "third"]},
        {"domain": "own", "prompt": "as it stands"},
        {"domain": "math", "text": "Question: 2 + 2?\nAnswer: 4"},
    )
    asked = read_prompts(path, Chat(), chat=None)
    assert [(prompt.domain, prompt.question, prompt.later) for prompt in asked] == [
        ("humaneval", "HumanEval/7", ()),
        ("gsm8k", None, ()),
        ("writing", 81, ("second", "third")),
        ("own", None, ()),
        ("math", None, ()),
    ]
    wrapped = [[{"role": "user", "content": text}] for text in ("def f():", "1 + 1?", "first")]
    rest = ["as it stands", "Question: 2 + 2?\nAnswer:"]
    assert [prompt.content for prompt in asked] == wrapped + rest
    plain = ["def f():", "Question: 1 + 1?\nAnswer:", "first", *rest]
    for tokenizer, chat in ((Chat(), False), (None, None)):
        assert [prompt.content for prompt in read_prompts(path, tokenizer, chat=chat)] == plain


def test_token_ids_are_no_chat_message(tmp_path):
    path = write(tmp_path / "set.jsonl", {"task_id": 0, "prompt": [3, 4]})
    assert read_prompts(path, Chat(), chat=True)[0].content == [3, 4]


@pytest.mark.parametrize("chat", [False, True])
def test_turns_follow_the_answers_of_ar(tmp_path, monkeypatch, chat):
    path = write(
        tmp_path / "set.jsonl", {"question_id": 5, "turns": ["q1", "q2", "q3"]}, {"prompt": "other"}
    )
    calls = []

    def decode(params, prompt, **options):
        calls.append((prompt, options))
        return SimpleNamespace(text=f" a{len(calls)}")

    monkeypatch.setattr(jaxspec, "decode", decode)
    read = read_prompts(path, Chat(), chat=chat)
    asked = ask_conversations(None, read, options={"seed": 3, "drafter": "x"})
    assert [prompt.turn for prompt in asked] == [0, 1, 2, 0] and not any(
        prompt.later for prompt in asked
    )
    assert [options for _, options in calls] == [{"seed": 3, "drafter": "ar"}] * 2
    assert [prompt for prompt, _ in calls] == [asked[0].content, asked[1].content]
    if chat:
        said = [
            ("user", "q1"),
            ("assistant", "a1"),
            ("user", "q2"),
            ("assistant", "a2"),
            ("user", "q3"),
        ]
        assert asked[2].content == [{"role": role, "content": text} for role, text in said]
    else:
        assert asked[2].content == "q1 a1\n\nq2 a2\n\nq3"
    same = number_questions(asked)
    assert same[0] == same[1] == same[2] != same[3]


def test_long_texts_become_passages(tmp_path):
    lines = [f"line {i} " + "word " * 20 for i in range(200)]
    text = "\n".join(lines)
    path = write(
        tmp_path / "held.jsonl.gz",
        {"domain": "code", "text": "tiny text"},
        {"domain": "prose", "text": text},
    )
    prompts = read_prompts(path, Words())
    assert prompts[0].content == Words().encode("tiny text")
    passages = [prompt.content for prompt in prompts if prompt.domain == "prose"]
    assert len(passages) == round(len(text) / PASSAGE_CHARACTERS) == 11, (
        "the last piece is long enough to count"
    )
    starts = {tuple(Words().encode(line))[:3] for line in lines}
    assert all(
        len(passage) == PROMPT_TOKENS and tuple(passage[:3]) in starts for passage in passages
    )
    assert len({tuple(passage) for passage in passages}) == len(passages)
    assert prompts == read_prompts(path, Words())


def test_limit_is_per_domain_and_spreads(tmp_path):
    records = [{"prompt": f"{domain}{i}", "domain": domain} for domain in "ab" for i in range(10)]
    prompts = read_prompts(write(tmp_path / "set.jsonl", *records), None, limit=3)
    assert [prompt.content for prompt in prompts] == ["a0", "a3", "a6", "b0", "b3", "b6"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 1 is not JSON"),
        ("[1]", "line 1 is not a JSON object"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "begins with an answer"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "has the role 'robot'"),
        ('{"body": "x"}', "none of the keys messages, prompt, turns, question, problem"),
        ("", "holds no prompts"),
        ('{"text": "x"}', "no tokenizer"),
        ('{"turns": "x"}', "turns is not a list of texts"),
        ('{"turns": []}', r"line 1: turns is \[\]: write a text that is not empty"),
        ('{"text": null}', "line 1: text is null: write a text that is not empty"),
        ('{"problem": ""}', 'line 1: problem is "": write a text that is not empty'),
        ('{"question_content": 3}', "line 1: question_content is 3: write a text"),
        ('{"context": "x", "input": null}', "line 1: input is null: write a text"),
        ('{"text": "x", "test_list": "y"}', "line 1: test_list is not a list of texts"),
        ('{"question": "x", "choices": [1]}', "line 1: choices is not a list of 1 to 26 texts"),
        ('{"prompt": ""}', 'line 1: prompt is "": write a text that is not empty'),
    ],
)
def test_bad_files(tmp_path, line, message):
    path = tmp_path / "set.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_prompts(path, None)


def test_bad_limit(tmp_path):
    with pytest.raises(ValueError, match="limit is 0"):
        read_prompts(tmp_path / "set.jsonl", None, limit=0)


def test_a_prompt_that_does_not_fit_is_told_first(monkeypatch):
    def prepare(params, prompt, **options):
        assert options == {"max_new_tokens": 9, "drafter": "ar"}
        if len(prompt) > 2:
            raise ValueError("too long")

    monkeypatch.setitem(check_prompts.__globals__, "prepare", prepare)
    check_prompts(None, [LabelledPrompt("a", [1])], {"max_new_tokens": 9})
    with pytest.raises(ValueError, match="prompt 2, of rag: too long"):
        check_prompts(
            None,
            [LabelledPrompt("a", [1]), LabelledPrompt("rag", [1, 2, 3])],
            {"max_new_tokens": 9, "drafter": "x"},
        )


def test_half_surrogate_pairs_are_replaced(tmp_path):
    """Written as escapes, or as bytes that are no UTF-8; other such bytes are refused."""
    path = write(tmp_path / "a.jsonl", {"prompt": "hi \ud83d", "domain": "\ude00"})
    assert read_prompts(path, None) == [LabelledPrompt("\ufffd", "hi \ufffd")]
    path.write_bytes(b'{"prompt": "hi \xed\xa0\xbd there", "domain": "a"}\n')
    assert read_prompts(path, None)[0].content == "hi \ufffd there"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(ValueError, match="a.jsonl is not UTF-8: save it as UTF-8"):
        read_prompts(path, None)
