import gzip
import json

import pytest

from training.data import DataError, read_documents
from training.samples import read_records


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_all_published_forms_are_read(tmp_path):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    records = [
        {"messages": chat, "domain": "talk"},
        {
            "conversations": [
                {"from": "human", "value": "Hi", "weight": 1},
                {"from": "gpt", "value": "Hello"},
            ]
        },
        {
            "conversations": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": None},
                chat[1],
            ]
        },
        {"prompt": "Hi", "response": "Hello"},
        {"prompt": chat[:1], "completion": "Hello"},
        {"prompt": "Hi"},
        {"domain": "prose", "id": "x", "text": "Call me Ishmael."},
        {"tokens": [5, 6, 7], "prompt_length": 1, "prompt": "Hi", "response": "Hello"},
    ]
    messages, sharegpt, parts, raw, turns, prompt, text, exact = read_records(
        write(tmp_path / "a.jsonl", *records)
    )
    assert messages.messages == sharegpt.messages == parts.messages == chat
    assert (messages.domain, text.domain, raw.domain) == ("talk", "prose", None)
    assert (raw.prompt, raw.response) == ("Hi", "Hello") and (turns.prompt, turns.response) == (
        chat[:1],
        "Hello",
    )
    assert (prompt.prompt, prompt.response) == ("Hi", None)
    assert text.text == "Call me Ishmael." and text.place == f"{tmp_path / 'a.jsonl'}, line 7"
    assert (exact.tokens, exact.prompt_length, exact.prompt) == ([5, 6, 7], 1, None)


def test_prompts_of_public_sets_are_read(tmp_path):
    """GSM8K's questions, and the first turns of MT-Bench and Spec-Bench."""
    records = [
        {"question": "2 + 2?", "answer": "#### 4"},
        {"question": "Why?"},
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    ]
    full, bare, turns = read_records(write(tmp_path / "a.jsonl", *records))
    assert (full.prompt, full.response) == ("2 + 2?", "#### 4")
    assert (bare.prompt, bare.response) == ("Why?", None)
    assert turns.prompt == [{"role": "user", "content": "Write."}] and turns.domain == "writing"


def test_what_a_template_needs_is_kept(tmp_path):
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"name": "f"}],
        "reasoning_content": "why",
        "other": None,
    }
    record = {"messages": [{"role": "user", "content": "x"}, call], "tools": [{"type": "function"}]}
    (read,) = read_records(write(tmp_path / "a.jsonl", record))
    assert read.messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "f"}],
        "reasoning_content": "why",
    }
    assert read.tools == [{"type": "function"}]


def test_settings_and_blank_lines_are_skipped_and_gzip_is_read(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"settings": {"seed": 0}}\n\n{"text": "a"}\n'))
    (record,) = read_records(path)
    assert record.place.endswith("line 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"body": "x", "n": 1}', r"no known form \(its keys: body, n\)"),
        ('{"text": ""}', "text is not a string with text"),
        ('{"text": 3}', "text is not a string"),
        ('{"text": "x", "domain": 3}', "domain is 3"),
        ('{"prompt": 3}', "prompt is not a list of messages"),
        ('{"prompt": "x", "response": ["y"]}', "response is not a string"),
        ('{"messages": []}', "messages is not a list"),
        ('{"messages": ["x"]}', "message 1 of messages is not a JSON object"),
        (
            '{"messages": [{"role": "robot", "content": "x"}]}',
            "message 1 of messages has the role 'robot': expected one of",
        ),
        (
            '{"conversations": [{"from": "human", "value": null}]}',
            "message 1 of conversations has no text",
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": "f"}', "tools is not a list"),
        ('{"tokens": [1, true], "prompt_length": 1}', "not a list of token ids"),
        ('{"tokens": [1, -2], "prompt_length": 1}', "not a list of token ids"),
        ('{"tokens": [1, 2]}', "prompt_length is None"),
        (
            '{"tokens": [1, 2], "prompt_length": 2}',
            "prompt_length is 2: give a number .* below the 2 tokens",
        ),
        ('{"settings": {}}', "no known form"),
    ],
)
def test_bad_records_are_named_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"bad\.jsonl, line 2: .*{message}"):
        read_records(path)


def test_unusable_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no data file at .*none\.jsonl"):
        read_records(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl holds no records"):
        read_records(empty)
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(b'{"text": "x"}\n' * 500)[:-12])
    with pytest.raises(DataError, match=r"short\.jsonl\.gz, after line \d+: cannot be read"):
        read_records(short)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"text": "café"}'.encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.jsonl, after line 0: cannot be read"):
        read_records(latin)


def test_half_surrogate_pairs_are_replaced(tmp_path):
    path = tmp_path / "halves.jsonl"
    half, said = "hi \ud83d", "hi \ufffd"
    lines = [
        {"text": half, "domain": half},
        {"prompt": half, "response": half},
        {"messages": [{"role": "user", "content": half}, {"role": "assistant", "content": half}]},
        {"question": half, "answer": half},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, pair, chat, question = read_records(path)
    assert (text.text, text.domain) == (said, said)
    assert (pair.prompt, pair.response) == (question.prompt, question.response) == (said, said)
    assert [one["content"] for one in chat.messages] == [said, said]
    path.write_text(json.dumps({"domain": half, "text": half}))
    assert read_documents(path) == {said: [said]}
