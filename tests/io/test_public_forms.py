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


def asked(path, **options):
    """The texts for a chat model, after their domains and names."""
    return [
        (one.domain, one.question, one.content[0]["content"])
        for one in read_prompts(path, Chat(), chat=None, **options)
    ]


BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


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
        ("Algebra", "a/1.json", "1 + 1?" + BOXED),
        ("test", 3, "2 + 2?" + BOXED),
        ("test", None, "3 + 3?" + BOXED),
    ]
    assert [text for *_, text in asked(path, boxed=False)] == ["1 + 1?", "2 + 2?", "3 + 3?"]
    plain = [one.content for one in read_prompts(path, None)]
    assert plain == [f"Question: {n} + {n}?\nAnswer:" for n in (1, 2, 3)]


def test_only_mathematical_answers_are_boxed(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"question": "4 + 4?", "answer": "It is 8.\n#### 8"},
        {"question": "Who?", "answer": "Ada"},
        {"question": "When?", "answer": "1815"},
        {"problem": "Sort a list.", "solution": "sorted(x)"},
        {"problem": "5 + 5?", "solution": "It is $\\boxed{10}$."},
    )
    *others, last = [text for *_, text in asked(path)]
    assert others == ["4 + 4?", "Who?", "When?", "Sort a list."] and last == "5 + 5?" + BOXED
    gsm8k, *others = [text for *_, text in asked(path, boxed=True)]
    assert gsm8k == "4 + 4?" + BOXED and others == ["Who?", "When?", "Sort a list.", last]


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
    assert {one.content for one in read_prompts(path, None)} == {f"{text}\n[BEGIN]\n"}


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


def test_longbench_asks_as_its_task_does(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"context": "It {rained}.", "input": "Why?", "dataset": "hotpotqa", "_id": "x"},
        {"context": "A report.", "input": "", "dataset": "gov_report_e"},
        {"context": "It rained.", "input": "Why?", "dataset": "other"},
        {"context": "A report.", "input": ""},
    )
    only = "Only give me the answer and do not output any other words."
    assert asked(path) == [
        (
            "hotpotqa",
            "x",
            f"Answer the question based on the given passages. {only}\n\n"
            "The following are given passages.\nIt {rained}.\n\n"
            f"Answer the question based on the given passages. {only}\n\nQuestion: Why?\nAnswer:",
        ),
        (
            "gov_report_e",
            None,
            "You are given a report by a government agency. Write a one-page summary of the "
            "report.\n\nReport:\nA report.\n\nNow, write a one-page summary of the report."
            "\n\nSummary:",
        ),
        ("other", None, "It rained.\n\nWhy?"),
        ("longbench", None, "A report."),
    ]


def test_longbench_puts_examples_into_no_template(tmp_path):
    """Its own code (pred.py) calls its tasks of examples better without; --chat on asks for it."""
    record = {"context": "A ", "input": "b", "dataset": "repobench-p"}
    path = write(tmp_path / "set.jsonl", record)
    text = "Please complete the code given below. \nA bNext line of code:\n"
    assert [one.content for one in read_prompts(path, Chat(), chat=None)] == [text]
    wrapped = [[{"role": "user", "content": text}]]
    assert [one.content for one in read_prompts(path, Chat(), chat=True)] == wrapped


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
