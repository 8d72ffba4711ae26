import gzip
import json

import pytest
import tyro

from training.data.documents import DataError, read_documents
from training.data.pipeline import DataOptions, load_samples
from training.data.samples import read_records
from training.regenerate import RegenerateOptions


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


SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Weather?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Paris"}}'},
    {"from": "observation", "value": "rain"},
    {"from": "chatgpt", "value": "Rain."},
]
CALL = {"name": "weather", "arguments": {"city": "Paris"}}
READ = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
]


def test_sharegpt_as_it_is_published(tmp_path, caplog):
    """One JSON array with a byte order mark, on one line or many, with roles of many names."""
    tools = [{"name": "weather", "parameters": {}}]
    apart = {"dialog": SHAREGPT[1:], "system": "Be brief.", "tools": json.dumps(tools)}
    empty = {"id": "x", "conversations": []}
    records = [{"id": "a", "conversations": SHAREGPT}, empty, apart, {"conversation": SHAREGPT}]
    path = tmp_path / "a.json"
    for indent in (None, 2):
        path.write_text(json.dumps(records, indent=indent), encoding="utf-8-sig")
        read = read_records(path)
        assert [one.messages for one in read] == [READ] * 3
        assert [one.tools for one in read] == [None, tools, None]
    assert read[0].place.endswith("a.json, record 1 in line 2")
    assert "1 empty conversations are left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((name, "assistant") for name in ("gpt", "chatgpt", "bing", "bard", "model", "Assistant")),
        *((name, "user") for name in ("human", "user", "User")),
        *((name, "tool") for name in ("tool", "observation", "function_response", "function")),
        *((name, "system") for name in ("system", "developer")),
    ],
)
def test_roles_under_their_published_names(tmp_path, name, role):
    first = {"from": "human", "value": "Hi"}
    record = {"conversations": [first, {"from": name, "value": "x"}]}
    (read,) = read_records(write(tmp_path / "a.jsonl", record))
    assert read.messages == [{"role": "user", "content": "Hi"}, {"role": role, "content": "x"}]


def test_calls_of_tools_in_a_role_of_their_own(tmp_path):
    def calls(value):
        record = {"conversations": [{"from": "function_call", "value": value}]}
        (read,) = read_records(write(tmp_path / "a.jsonl", record))
        (message,) = read.messages
        assert message["role"] == "assistant"
        return [call["function"] for call in message.get("tool_calls", ())] or message["content"]

    assert calls(json.dumps(CALL)) == [CALL] and calls(json.dumps([CALL, CALL])) == [CALL, CALL]
    assert calls("search: weather") == "search: weather"  # of models that call by text


def test_unknown_roles_are_all_named_with_what_maps_them(tmp_path):
    def talk(*names):
        return {"conversations": [{"from": name, "value": "x"} for name in names]}

    path = write(
        tmp_path / "a.jsonl",
        talk("human", "gpt"),
        talk("Narrator"),
        talk("narrator", "x"),
        talk("z"),
    )
    with pytest.raises(DataError) as caught:
        read_records(path)
    said = str(caught.value)
    assert "a.jsonl, line 2: message 1 of conversations has the role 'Narrator': expected" in said
    assert "'Narrator' (1), 'narrator' (1), 'z' (1)" in said
    assert "map such roles, as in --roles 'Narrator' assistant" in said
    with pytest.raises(DataError, match="line 3: message 2 of conversations has the role 'x'"):
        read_records(path, {"NARRATOR": "user", "z": "tool"})
    read = read_records(path, {"narrator": "assistant", "x": "user", "z": "tool"})
    assert [[one["role"] for one in record.messages] for record in read] == [
        ["user", "assistant"],
        ["assistant"],
        ["assistant", "user"],
        ["tool"],
    ]
    with pytest.raises(DataError, match="'z' is mapped to 'robot': give one of user, assistant"):
        read_records(path, {"z": "robot"})


def test_roles_are_an_option_of_training_and_regeneration(tmp_path):
    talk = [{"from": "narrator", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    path = write(tmp_path / "a.jsonl", {"conversations": talk})
    with pytest.raises(DataError, match="has the role 'narrator'"):
        load_samples(DataOptions((path,)), "mini")
    assert len(load_samples(DataOptions((path,), roles={"narrator": "user"}), "mini")) == 1
    options = tyro.cli(
        RegenerateOptions,
        args=f"--target mini --prompts {path} --out x --roles narrator user".split(),
    )
    assert options.roles == {"narrator": "user"}


def test_instructions_are_prompts(tmp_path):
    records = [
        {"instruction": "Add.", "input": "2 + 2", "output": "4"},
        {"instruction": "Add.", "input": "", "output": "4"},
        {"instruction": "Add."},
    ]
    read = read_records(write(tmp_path / "a.jsonl", *records))
    assert [(one.prompt, one.response) for one in read] == [
        ("Add.\n\n2 + 2", "4"),
        ("Add.", "4"),
        ("Add.", None),
    ]


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
