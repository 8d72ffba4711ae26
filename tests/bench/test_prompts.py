import gzip
import json

import pytest

from jaxspec.bench.prompts import PASSAGE_CHARACTERS, PROMPT_TOKENS, read_prompts


class Words:
    """A tokenizer with a token per word."""

    def encode(self, text):
        return [hash(word) for word in text.split()]


def write(path, *records):
    data = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


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


def test_long_texts_become_passages(tmp_path):
    lines = [f"line {i} " + "word " * 20 for i in range(200)]
    text = "\n".join(lines)
    path = write(tmp_path / "held.jsonl.gz", {"domain": "code", "text": "tiny text"}, {"domain": "prose", "text": text})
    prompts = read_prompts(path, Words())
    assert prompts[0].content == Words().encode("tiny text")
    passages = [prompt.content for prompt in prompts if prompt.domain == "prose"]
    assert len(passages) == round(len(text) / PASSAGE_CHARACTERS) == 11, "the last piece is long enough to count"
    starts = {tuple(Words().encode(line))[:3] for line in lines}
    assert all(len(passage) == PROMPT_TOKENS and tuple(passage[:3]) in starts for passage in passages)
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
        ('{"body": "x"}', "none of the keys prompt, turns, question, text"),
        ("", "holds no prompts"),
        ('{"text": "x"}', "no tokenizer"),
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
