"""Public benchmarks, in the forms in which they are published."""

import json
import sys
from types import SimpleNamespace

import pytest

from jaxspec.cli.shared import parse
from jaxspec.io.text.prompt_files import read_prompts
from jaxspec.io.text.record_sources import name_source, read_records


class Chat:
    has_chat_template = True


def asked(path):
    """The texts for a chat model, after their domains and names."""
    return [
        (one.domain, one.question, one.content[0]["content"])
        for one in read_prompts(path, Chat(), chat=None)
    ]


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_math_problems(tmp_path):
    path = write(
        tmp_path / "test.jsonl",
        {"problem": "1 + 1?", "answer": "2", "subject": "Algebra", "unique_id": "a/1.json"},
        {"problem_idx": 3, "problem": "2 + 2?", "answer": 4},
        {"question": "3 + 3?", "answer": "6"},
    )
    assert asked(path) == [
        ("Algebra", "a/1.json", "1 + 1?"),
        ("test", 3, "2 + 2?"),
        ("test", None, "3 + 3?"),
    ]
    plain = [one.content for one in read_prompts(path, None)]
    assert plain == [f"Question: {n} + {n}?\nAnswer:" for n in (1, 2, 3)]


def test_livecodebench_gives_the_starter_code_or_asks_for_a_program(tmp_path):
    path = write(
        tmp_path / "test6.jsonl",
        {"question_content": "Add.", "starter_code": "def add():", "question_id": "7"},
        {"question_content": "Sum.", "starter_code": "", "platform": "atcoder"},
    )
    (domain, name, first), (_, _, second) = asked(path)
    assert (domain, name) == ("livecodebench", "7")
    assert first.startswith("### Question:\nAdd.\n\n### Format: You will use the following starter")
    assert "```python\ndef add():\n```\n\n### Answer:" in first
    assert "Read the inputs from stdin" in second and "# YOUR CODE HERE" in second


def test_mbpp_is_a_task_with_its_tests_and_no_passage(tmp_path):
    tests = ["assert f(1) == 2", "assert f(2) == 3"]
    path = write(
        tmp_path / "set.jsonl",
        {"task_id": 11, "text": "Write f.", "code": "…", "test_list": tests},
        {"task_id": 12, "prompt": "Write f.", "test_imports": [], "test_list": tests},
    )
    text = (
        "You are an expert Python programmer, and here is your task: Write f. "
        "Your code should pass these tests:\n\nassert f(1) == 2\nassert f(2) == 3"
    )
    assert asked(path) == [("mbpp", 11, text), ("mbpp", 12, text)]


def test_alpaca(tmp_path):
    path = tmp_path / "code_alpaca.json"
    records = [
        {"instruction": "Add.", "input": "2, 3", "output": "5", "text": "Below is …"},
        {"instruction": "Greet.", "input": "", "output": "Hi"},
    ]
    path.write_text(json.dumps(records))
    assert asked(path) == [
        ("code_alpaca", None, "Add.\n\n2, 3"),
        ("code_alpaca", None, "Greet."),
    ]


def test_mmlu_has_its_choices_and_its_subject(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"question": "Red?", "subject": "high_school_art", "choices": ["yes", "no"], "answer": 0},
        {"question": "Blue?", "category": "law", "options": ["a", "b", "c"], "question_id": 70},
        {"question": "Green?", "choices": ["yes", "no"]},
    )
    assert asked(path) == [
        ("high_school_art", None, "Red?\nA. yes\nB. no"),
        ("law", 70, "Blue?\nA. a\nB. b\nC. c"),
        ("mmlu", None, "Green?\nA. yes\nB. no"),
    ]
    head = "The following are multiple choice questions (with answers)"
    first, _, third = [one.content for one in read_prompts(path, None)]
    assert first == f"{head} about high school art.\n\nRed?\nA. yes\nB. no\nAnswer:"
    assert third.startswith(f"{head}.\n\n")


def test_longbench_puts_the_input_after_the_context(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"context": "It rained.", "input": "Why?", "dataset": "hotpotqa", "_id": "x"},
        {"context": "A report.", "input": "", "dataset": "gov_report"},
        {"context": "A report.", "input": ""},
    )
    assert asked(path) == [
        ("hotpotqa", "x", "It rained.\n\nWhy?"),
        ("gov_report", None, "A report."),
        ("longbench", None, "A report."),
    ]


def test_a_prompt_of_its_own_counts_before_the_question_that_it_was_made_from(tmp_path):
    path = write(tmp_path / "set.jsonl", {"prompt": "as given", "question": "q", "problem": "p"})
    assert read_prompts(path, None)[0].content == "as given"


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "test-00000.parquet"
    columns = {"question": ["Red?"], "subject": ["art"], "choices": [["yes", "no"]], "answer": [1]}
    parquet.write_table(pyarrow.table(columns), path)
    assert asked(path) == [("art", None, "Red?\nA. yes\nB. no")]
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="this is no Parquet file that can be read"):
        read_prompts(path, None)
    with pytest.raises(FileNotFoundError):
        read_prompts(tmp_path / "none.parquet", None)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library, so that no test asks a network; it keeps what it was asked."""
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        if split == "none":
            raise ValueError("Unknown split\n'none'")
        return [{"problem": "1 + 1?"}, {"problem": "2 \ud83d 2?", "subject": "Algebra"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("jaxspec.core.runtime.distribution.is_installed", lambda name: True)
    return calls


def test_data_sets_of_the_hub_are_read_by_name(hub):
    assert asked("hub:o/math-500") == [
        ("math-500", None, "1 + 1?"),
        ("Algebra", None, "2 \ufffd 2?"),
    ]
    asked("hub:o/mmlu/all:dev")
    assert hub == [("o/math-500", None, "test"), ("o/mmlu", "all", "dev")]
    assert parse.parse_prompts("hub:o/mmlu") == "hub:o/mmlu"
    with pytest.raises(ValueError, match=r"hub:o/n:none cannot be read \(Unknown split 'none'\): "):
        list(read_records("hub:o/n:none"))


@pytest.mark.parametrize("name", ["hub:", "hub:mmlu", "hub:/x", "hub:o/"])
def test_a_name_without_an_owner_is_refused(name):
    with pytest.raises(ValueError, match="write hub:OWNER/NAME"):
        name_source(name)


def test_the_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxspec.core.runtime.distribution.is_installed", lambda name: False)
    with pytest.raises(ImportError, match=r"datasets is missing: .*data"):
        parse.parse_prompts("hub:o/mmlu")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    with pytest.raises(ImportError, match=r"pyarrow is missing: .*data"):
        read_prompts(path, None)
