"""The field's figures of speculative decoding, as papers and systems define them.

They all follow from the numbers of rounds by committed tokens (`accept_hist`), the verified nodes
(`drafted`) and seconds. The last token of a round is the target's own, the bonus, so a round that
committed i tokens accepted i - 1 drafted ones. In a round cut by a stop or by the limit the last
token counts as the bonus, even if it was drafted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Definition(NamedTuple):
    """A figure under the name that a paper or system gives it.

    Attributes:
      name: name in that paper or system.
      key: key in a benchmark's records.
      line: definition in one line.
    """

    name: str
    key: str
    line: str


DEFINITIONS = (
    Definition(
        "mean acceptance length",
        "mean_acceptance_length",
        "tokens of all rounds divided by rounds, with the bonus (micro); Spec-Bench's and vLLM's "
        "`#Mean accepted tokens`",
    ),
    Definition(
        "EAGLE's τ",
        "mean_acceptance_length",
        "tokens per cycle of drafting and verification, with the bonus; its older scripts count "
        "none",
    ),
    Definition(
        "mean accepted length",
        "mean_accepted_length",
        "the same without the bonus: accepted draft tokens per round",
    ),
    Definition(
        "macro",
        "mean_acceptance_length_macro",
        "tokens divided by rounds for each prompt, then averaged over prompts, with the bonus; "
        "DFlash's acceptance length",
    ),
    Definition(
        "macro, without the bonus", "mean_accepted_length_macro", "the same without the bonus"
    ),
    Definition(
        "SGLang's spec_accept_length",
        "tokens_per_verification",
        "all tokens of the answers, including the one from the prefill, per verification pass",
    ),
    Definition(
        "vLLM's draft acceptance rate",
        "draft_acceptance_rate",
        "share of verified draft tokens that are accepted; all nodes of a tree count, though at "
        "most one path can be accepted",
    ),
    Definition(
        "vLLM's per-position rates",
        "acceptance_rate_per_pos",
        "share of all rounds that accepted at least 1, 2, 3, … draft tokens (unconditional); in a "
        "tree, a position is a depth",
    ),
    Definition(
        "conditional rates",
        "acceptance_rate_per_pos_conditional",
        "of the rounds that accepted the previous position, the share that accepted this one too; "
        "DeepSpec's accept_rate@pos",
    ),
    Definition(
        "speed-up",
        "speedup",
        "tokens per second after the prefill, divided by that of `ar`: what a user waits for",
    ),
    Definition(
        "mean of ratios",
        "speedup_mean_of_ratios",
        "speed divided by that of `ar` for each question, then averaged",
    ),
    Definition(
        "Spec-Bench's speed-up",
        "speedup_of_mean_speeds",
        "tokens per second of each question, with its prefill, averaged and then divided by that "
        "of `ar`",
    ),
)


def measure_acceptance(histograms: Sequence[Sequence[int]], drafted: int) -> dict[str, Any]:
    """Compute figures of acceptance; a figure is None if no round was decoded or nothing was
    drafted.

    Args:
      histograms: one per prompt; entry i counts the rounds that committed i tokens, see
        `Stats.accept_hist`.
      drafted: number of verified nodes of all prompts, without roots.
    """
    counts = pad_histograms(histograms)
    rounds, committed = counts.sum(1), counts @ np.arange(counts.shape[1])
    prompts, total = len(histograms), int(rounds.sum())
    each = committed[rounds > 0] / rounds[rounds > 0]
    # Entry p: rounds that accepted at least p drafted tokens.
    reached = counts.sum(0)[1:][::-1].cumsum()[::-1] if counts.shape[1] > 1 else np.zeros(1, int)
    micro, macro = divide(committed.sum(), total), divide(each.sum(), len(each))
    return {
        "mean_acceptance_length": micro,
        "mean_accepted_length": None if micro is None else micro - 1,
        "mean_acceptance_length_macro": macro,
        "mean_accepted_length_macro": None if macro is None else macro - 1,
        "tokens_per_verification": divide(committed.sum() + prompts, total),
        "draft_acceptance_rate": divide(committed.sum() - total, drafted),
        "acceptance_rate_per_pos": [divide(count, total) for count in reached[1:]],
        "acceptance_rate_per_pos_conditional": [
            divide(now, before) for before, now in zip(reached, reached[1:], strict=False)
        ],
    }


class Timed(NamedTuple):
    """Tokens and seconds of one method, per prompt.

    Attributes:
      tokens: float64 [P], all tokens, the prefill's included.
      seconds: float64 [P], all seconds, the prefill's included.
      after: float64 [P], tokens without the one that the prefill draws.
      decoding: float64 [P], seconds without the prefill.
    """

    tokens: np.ndarray
    seconds: np.ndarray
    after: np.ndarray
    decoding: np.ndarray


def compare_speeds(
    own: Timed, plain: Timed, questions: Sequence[Hashable]
) -> dict[str, float | None]:
    """Compute speed-ups as means over questions, summing the turns of each; see `DEFINITIONS`.

    Args:
      questions: question of each of the P prompts; equal entries are turns of one question.
    """
    own, plain = (
        Timed(*(_by_question(values, questions) for values in one)) for one in (own, plain)
    )
    drafted = (own.after > 0) & (plain.after > 0)
    speeds = [one.after[drafted] / one.decoding[drafted] for one in (own, plain)]
    whole = [one.tokens / one.seconds for one in (own, plain)]
    return {
        "speedup_mean_of_ratios": divide(np.sum(speeds[0] / speeds[1]), drafted.sum()),
        "speedup_of_mean_speeds": divide(whole[0].mean(), whole[1].mean()),
    }


def pad_histograms(histograms: Sequence[Sequence[int]]) -> np.ndarray:
    """Pad histograms of unequal lengths with zeros, as the rows of an int array."""
    counts = np.zeros((len(histograms), max(map(len, histograms))), int)
    for row, histogram in zip(counts, histograms, strict=True):
        row[: len(histogram)] = histogram
    return counts


def divide(above: Any, below: Any) -> float | None:
    """Divide; None if the divisor is 0."""
    return float(above / below) if below else None


def _by_question(values: np.ndarray, questions: Sequence[Hashable]) -> np.ndarray:
    index = {question: number for number, question in enumerate(dict.fromkeys(questions))}
    return np.bincount([index[question] for question in questions], values)
