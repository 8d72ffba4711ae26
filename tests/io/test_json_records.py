"""Files of JSON objects as people have them."""

from __future__ import annotations

import gzip
import json

import pytest

from jaxspec.io.text.json_records import BrokenRecord, read_objects

RECORDS = [{"text": "żółć 😀"}, {"text": "a,]}\u2028b", "n": [1, {"x": []}]}, {"text": "c"}]
LINES = "\n".join(json.dumps(one, ensure_ascii=False) for one in RECORDS)


def read(tmp_path, data, name="set.jsonl"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(read_objects(path))


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        LINES + "\n",
        "\n \n" + LINES.replace("\n", "\n\n") + "\n\n",
        LINES.replace("\n", "\r\n") + "\r\n",
        LINES.replace("\n", "\n\ufeff"),  # files put together
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2),
        json.dumps(RECORDS, indent=2).replace("\n", "\r\n"),
        "\n" + json.dumps(RECORDS, ensure_ascii=False) + " \n",
        "\n".join(json.dumps(one, indent=4) for one in RECORDS),
        "[\n" + LINES.replace("\n", ",\n") + ",\n]\n",  # a comma too many
        json.dumps({"settings": {"seed": 0}}) + "\n" + LINES,
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_every_layout_is_read(tmp_path, text, encoding):
    data = (b"\xfe\xff" if encoding == "utf-16-be" else b"") + text.encode(encoding)
    assert [content for _, content in read(tmp_path, data)] == RECORDS
    packed = gzip.compress(data)
    for name in ("set.json.gz", "set.json"):  # whatever its name says
        assert [content for _, content in read(tmp_path, packed, name)] == RECORDS


def test_places_name_file_and_line(tmp_path):
    def lines_of(text):
        return [place.split("set.jsonl, ")[1] for place, _ in read(tmp_path, text)]

    assert lines_of("\n" + LINES) == ["line 2", "line 3", "line 4"]
    assert lines_of(json.dumps(RECORDS)) == [f"record {i} in line 1" for i in (1, 2, 3)]
    wide = json.dumps(RECORDS[:1] * 2, indent=1)
    assert lines_of(wide) == ["record 1 in line 2", "record 2 in line 5"]
    several = "\n".join(json.dumps(one, indent=1) for one in RECORDS[:1] * 2)
    assert lines_of(several) == ["line 1", "line 4"]


def test_empty_conversations_are_counted(tmp_path, caplog):
    record = {"conversations": [{"from": "human", "value": "Hi"}]}
    empty = {"id": "x", "conversations": []}
    assert [
        content for _, content in read(tmp_path, json.dumps([empty, record, empty], indent=1))
    ] == [record]
    assert "set.jsonl: 2 empty conversations are left out, the first in line 2" in caplog.text


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    line = r'{"text": "hi \ud83d there \ud83d\ude00", "n": ["\uDE00"]}'
    wanted = {"text": "hi \ufffd there 😀", "n": ["\ufffd"]}
    for text in (line, f"[{line}]"):
        ((_, content),) = read(tmp_path, text)
        assert content == wanted


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('{"a": 1}\n{"a": ', "line 2 is not JSON", 2),
        ('{"a": 1}\n{"a": 1} {"a": 2}', "line 2 is not JSON .more follows", 2),
        ('{"a": 1}\n[1]', "line 2 is not a JSON object", 2),
        ("[1]", "record 1 in line 1 is not a JSON object", 1),
        ('[\n{"a": 1},\n{"a": }\n]', "record 2 in line 3 is not JSON", 3),
        ('[\n{"a": 1}\n{"a": 2}\n]', "record 1 in line 2 is not JSON .a comma", 2),
        ('[\n{"a": 1},\n{"b":\n2', r"record 2 in line 3 is not JSON \(.* in line 4\)", 4),
        ('[\n{"a": 1},\n', "line 2 is not JSON .its array does not end", 2),
        ('[{"a": 1}]\n[{"a": 1}]', "line 1 is not JSON .its array is followed by more", 1),
        ('{\n"a": 1,\n}', r"line 1 is not JSON \(.* in line 2\)|line 3", None),
        (b'{"a": 1}\n{"a": "\xe9"}', "after line [01] cannot be read .*UTF-8", None),
        (gzip.compress(b'{"a": 1}\n' * 500, mtime=0)[:-12], r"after line \d+ cannot be read", None),
        ("[" * 100_000, "line 1 is not", 1),
    ],
)
def test_faults_name_file_and_line(tmp_path, text, message, line):
    with pytest.raises(BrokenRecord, match=rf"set\.jsonl, .*{message}") as caught:
        read(tmp_path, text)
    assert line in (None, caught.value.line) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_objects(tmp_path / "none.jsonl"))
