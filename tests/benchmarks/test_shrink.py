"""What `python -m benchmarks shrink` measures."""

import json
import types

import pytest

import jaxspec
from benchmarks.__main__ import main
from benchmarks.serving import shrink

PROMPTS = [[1, 2], [3], [4, 5, 6]]


@pytest.fixture
def calls(monkeypatch):
    """Let calls of `decode` note what they are asked, and give a text of each prompt."""
    made = []

    def decode(params, texts, *, shrink, **options):
        made.append((texts, shrink, options))
        return [types.SimpleNamespace(tokens=[7] * len(text)) for text in texts]

    def warmup(params, *, shrink, **options):
        return types.SimpleNamespace(seconds=3.0 if shrink else 2.0)

    monkeypatch.setattr(jaxspec, "decode", decode)
    monkeypatch.setattr(jaxspec, "warmup", warmup)
    return made


def test_both_ways_decode_the_same_texts_in_turns(calls):
    (record,) = shrink.compare_shrinking(None, PROMPTS, [2], repeats=2, drafter="ar")
    assert record["compile_seconds"] == [2.0, 3.0]
    texts = [call[0] for call in calls]
    # Once to warm up, then two repeats: other prompts, as far as there are.
    assert texts == [PROMPTS[:2]] * 4 + [[PROMPTS[2], PROMPTS[0]]] * 2
    ways = [call[1] for call in calls]
    assert ways == [False, True, True, False, False, True]
    assert all(call[2] == {"drafter": "ar"} for call in calls)
    assert record["tokens"] == [3, 5] and record["live"] == pytest.approx([0.75, 5 / 6])
    assert len(record["whole"]) == len(record["shrinking"]) == 2


def test_a_text_that_changes_is_an_error(calls, monkeypatch):
    ends = iter(range(100))
    one = types.SimpleNamespace
    monkeypatch.setattr(
        jaxspec, "decode", lambda params, texts, **_: [one(tokens=[next(ends)]) for _ in texts]
    )
    with pytest.raises(RuntimeError, match="a shrinking batch of 2 changed a text"):
        shrink.compare_shrinking(None, PROMPTS, [2], repeats=1)


def test_a_batch_of_one_cannot_shrink(calls):
    with pytest.raises(ValueError, match="batches is 1: give an integer at least 2"):
        shrink.compare_shrinking(None, PROMPTS, [1], repeats=1)


def test_the_table_compares_speeds_repeat_by_repeat():
    record = {"batch": 4, "compile_seconds": [2.0, 3.0], "tokens": [100, 100]}
    record |= {"live": [0.5, 0.7], "whole": [10.0, 10.0], "shrinking": [8.0, 8.0]}
    head, row = shrink.render_shrinking([record]).splitlines()
    assert row.split() == ["4", "0.60", "10.0", "12.5", "1.25", "[1.25,", "1.25]", "2.0", "3.0"]
    assert head.split()[:2] == ["batch", "live"]


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    file = tmp_path / "shrink.json"
    few = ["--batches", "2", "--repeats", "1", "--max-new-tokens", "6", "--budget", "2"]
    assert main(["shrink", "--drafter", "dflash", *few, "--json", str(file)]) == 0
    (record,) = json.loads(file.read_text())["records"]
    assert record["tokens"][0] > 0 and "gain" in capsys.readouterr().out
