"""Compare methods of one decode table, question by question, with paired intervals.

The table is that of `jaxspec bench --json bench.json --spec-bench answers.jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.reproduce.decide.rules import Figure
from jaxspec.bench.report.exports import file_name
from jaxspec.core.bootstrap import bound_ratio, resample_prompts

Report = Mapping[str, Any]
# What tables add to the names of methods whose drafts do not know the target's noise.
_UNCOUPLED = "/uncoupled"


class Answers:
    """The answers of the methods of a decode table.

    Attributes:
      records: the records of all prompts together, by method.
    """

    def __init__(self, report: Report) -> None:
        """Read the outputs of a measurement: `bench`, and `answers-METHOD` of every method."""
        self._report = report
        rows = report["bench"]["results"]
        self.records = {
            one["method"].removesuffix(_UNCOUPLED): one for one in rows if one["domain"] == "all"
        }

    def __contains__(self, method: str) -> bool:
        return method in self.records

    def acceptance(self, one: str, other: str) -> Figure:
        """Divide the tokens a round of two methods."""
        a, b = self._counts(one), self._counts(other)
        return self._ratio(f"{one} / {other}", (a[0], b[1]), (a[1], b[0]))

    def speed(self, one: str, other: str) -> Figure:
        """Divide the tokens a second of two methods, prompts included."""
        a, b = self._counts(one), self._counts(other)
        return self._ratio(f"{one} / {other}", (a[0], b[2]), (a[2], b[0]))

    def length(self, method: str) -> Figure:
        """Return a method's tokens a round, the bonus included."""
        found = self.records[method]
        bounds = found["mean_acceptance_length_ci"]
        return Figure(method, found["mean_acceptance_length"], bounds and tuple(bounds))

    def speedup(self, method: str) -> Figure:
        """Return a method's speed over plain decoding."""
        found = self.records[method]
        return Figure(method, found["speedup"], found["speedup_ci"] and tuple(found["speedup_ci"]))

    def share(self, method: str) -> Figure:
        """Return the share of a round that drafts."""
        return Figure(method, self.records[method]["draft_share"])

    def _counts(self, method: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens after the prefill's, rounds and seconds of every question."""
        choices = [one["choices"][0] for one in self._records(method)]
        tokens = [sum(one["new_tokens"]) - len(one["new_tokens"]) for one in choices]
        rounds = [sum(one["decoding_steps"]) for one in choices]
        seconds = [sum(one["wall_time"]) for one in choices]
        return np.array(tokens, float), np.array(rounds, float), np.array(seconds)

    def _records(self, method: str) -> Sequence[dict[str, Any]]:
        return self._report[f"answers-{file_name(self.records[method]['method'])}"]

    def _ratio(self, label: str, over, under) -> Figure:
        drawn = resample_prompts([one["category"] for one in self._records("ar")])
        value = np.prod([x.sum() for x in over]) / np.prod([x.sum() for x in under])
        bounds = bound_ratio(drawn, over, under)
        return Figure(label, float(value), bounds and tuple(bounds))
