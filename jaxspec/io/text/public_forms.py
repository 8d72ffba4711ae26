"""Ask the questions of public benchmarks, from records in the forms in which these are published.

A question has two texts: one for a chat model, and one that a model without a chat template
continues. What surrounds a question comes from the benchmark's own code or paper, if it has such a
text. MATH-500 and AIME have none: chat models are asked as the codes of DFlash and BASTION ask
them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Keys that name a question, and those that name its domain: the first that is there counts.
QUESTION_KEYS = ("question_id", "task_id", "id", "unique_id", "problem_idx", "_id")
DOMAIN_KEYS = ("domain", "category", "subject", "dataset")
# What DFlash's and BASTION's code (kaist-ai-osi-lab/BASTION, bastion/benchmark.py) add to problems
# of MATH-500 and AIME, and to GSM8K's questions.
_BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
# LongBench's prompts by task, {context} and {input} open: its config/dataset2prompt.json (MIT,
# Copyright (c) 2023 THU-KEG & Zhipu AI). Its own code puts these tasks in no chat template.
_LONGBENCH = Path(__file__).with_name("longbench.json")
_FEW_SHOT = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
# LiveCodeBench, lcb_runner/prompts/code_generation.py.
_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters."
)
_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
    "test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
    "the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT."
)


class Question(NamedTuple):
    """A question of a public benchmark.

    Attributes:
      domain: name of the benchmark, for records that name no domain; None: that of the file.
      text: for a chat model.
      plain: for a model that continues texts.
      chat: whether the benchmark asks chat models in their template.
    """

    domain: str | None
    text: str
    plain: str
    chat: bool = True


def find_question(
    record: Mapping[str, Any], where: str, boxed: bool | None = None
) -> Question | None:
    """Return the question of a record, None for other records. The first of these forms counts.

      `question_content`, `starter_code`: LiveCodeBench.
      `test_list` with `prompt` or `text`: MBPP (https://arxiv.org/abs/2108.07732, section 3.1).
    These, if there is no `prompt` and no `turns`:
      `context`, `input`: LongBench, in its own prompt of the task that `dataset` names; else the
        input follows the context after an empty line.
      `problem`: MATH-500 and AIME.
      `question`, `choices` or `options`: MMLU (https://arxiv.org/abs/2009.03300) and MMLU-Pro.
      `question`: GSM8K, AIME and others.

    Args:
      where: the place of the record, for errors.
      boxed: ask chat models to put the answer of a mathematical problem into \\boxed{}: True all of
        them, None those of MATH-500 and AIME, False none.

    Raises:
      ValueError: a part is no text.
    """
    if "question_content" in record:
        return _ask_livecodebench(record, where)
    if "test_list" in record and ("prompt" in record or "text" in record):
        return _ask_mbpp(record, where)
    if "prompt" in record or "turns" in record:
        return None
    if "context" in record and "input" in record:
        return _ask_longbench(record, where)
    if "problem" in record:
        # Other sets, of code for example, have problems too.
        answered = "answer" in record or "\\boxed" in str(record.get("solution"))
        return _ask(None, read_text(record, "problem", where), answered and boxed is not False)
    if "question" not in record:
        return None
    question = read_text(record, "question", where)
    key = next((key for key in ("choices", "options") if isinstance(record.get(key), list)), None)
    if key is not None:
        return _ask_choice(question, record[key], record.get("subject"), f"{where}: {key}")
    answer = str(record.get("answer"))
    domain = "gsm8k" if "####" in answer else None
    # AIME's answers are integers from 0 to 999.
    aime = answer.isdecimal() and len(answer) <= 3
    return _ask(domain, question, bool(boxed) if domain else aime and boxed is not False)


def read_text(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return a text of a record; a ValueError if it is none, or empty."""
    if not (isinstance(record[key], str) and record[key]):
        raise bad_text(key, record[key], where)
    return record[key]


def bad_text(key: str, value: Any, where: str) -> ValueError:
    """Return the error for a key that should hold a text."""
    given = f"{where}: {key} is {json.dumps(value, default=str)}"
    return ValueError(f"{given}: write a text that is not empty, or drop the line")


def _ask(domain: str | None, question: str, boxed: bool) -> Question:
    asked = question + _BOXED if boxed else question
    return Question(domain, asked, f"Question: {question}\nAnswer:")


def _ask_livecodebench(record: Mapping[str, Any], where: str) -> Question:
    asked, code = read_text(record, "question_content", where), record.get("starter_code")
    text = (
        f"### Question:\n{asked}\n\n### Format: {_STARTER if code else _STDIN}\n"
        f"```python\n{code or '# YOUR CODE HERE'}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )
    return Question("livecodebench", text, text)


def _ask_mbpp(record: Mapping[str, Any], where: str) -> Question:
    asked = read_text(record, "prompt" if "prompt" in record else "text", where)
    tests = record["test_list"]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ValueError(f"{where}: test_list is not a list of texts: write one text for each test")
    text = (
        f"You are an expert Python programmer, and here is your task: {asked} "
        "Your code should pass these tests:\n\n" + "\n".join(tests)
    )
    # The paper marks where the code begins. https://github.com/google-research/google-research,
    # mbpp.
    return Question("mbpp", text, f"{text}\n[BEGIN]\n")


def _ask_longbench(record: Mapping[str, Any], where: str) -> Question:
    context, asked = read_text(record, "context", where), record["input"]
    if not isinstance(asked, str):
        raise bad_text("input", asked, where)
    task = str(record.get("dataset")).removesuffix("_e")  # LongBench-E
    if task in (prompts := _read_longbench()):
        text = prompts[task].format(context=context, input=asked)
        return Question("longbench", text, text, task not in _FEW_SHOT)
    text = f"{context}\n\n{asked}" if asked else context  # summaries ask nothing
    return Question("longbench", text, text)


@functools.cache
def _read_longbench() -> dict[str, str]:
    return json.loads(_LONGBENCH.read_text(encoding="utf-8"))


def _ask_choice(question: str, choices: list[Any], subject: Any, where: str) -> Question:
    if not (0 < len(choices) <= 26 and all(isinstance(choice, str) for choice in choices)):
        raise ValueError(f"{where} is not a list of 1 to 26 texts: write one text for each answer")
    lines = [f"{chr(ord('A') + at)}. {choice}" for at, choice in enumerate(choices)]
    text = "\n".join([question, *lines])
    about = f" about {subject.replace('_', ' ')}" if isinstance(subject, str) and subject else ""
    head = f"The following are multiple choice questions (with answers){about}."
    return Question("mmlu", text, f"{head}\n\n{text}\nAnswer:")
