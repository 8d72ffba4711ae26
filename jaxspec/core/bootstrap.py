"""Compute confidence intervals of ratios of sums over prompts by the bootstrap (Efron 1979).

Bounds are percentiles over resampled prompts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = 95.0


def resample_prompts(
    domains: Sequence[str],
    questions: Sequence[Hashable] | None = None,
    *,
    count: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """Resample the questions of every domain with replacement, keeping each domain's number.

    Args:
      domains: domain of each of the P prompts. Domains are settings, not samples, so each keeps its
        number of questions.
      questions: the question that each prompt is a turn of. Turns of a question are not
        independent, so they are drawn together. None: every prompt is a question.
      seed: equal seeds draw the same prompts, so methods are compared on the same prompts.

    Returns:
      int64 [count, P], how often each prompt is drawn.
    """
    questions = range(len(domains)) if questions is None else questions
    random, drawn = np.random.default_rng(seed), np.zeros((count, len(domains)), np.int64)
    for domain in dict.fromkeys(domains):
        members = [i for i, other in enumerate(domains) if other == domain]
        index = {
            question: number
            for number, question in enumerate(dict.fromkeys(questions[i] for i in members))
        }
        times = random.multinomial(len(index), np.full(len(index), 1 / len(index)), size=count)
        drawn[:, members] = times[:, [index[questions[i]] for i in members]]
    return drawn


def bound_ratio(
    drawn: np.ndarray, above: Sequence[np.ndarray], below: Sequence[np.ndarray]
) -> list[float] | None:
    """Compute the 95 % interval of (product of the sums of `above`) / (product of the sums of
    `below`).

    Args:
      drawn: from `resample_prompts`.
      above: arrays [P], a value per prompt.
      below: arrays [P], a value per prompt.

    Returns:
      [low, high]; None for a single prompt of each domain, or if `below` sums to 0 throughout.
    """
    if (drawn == 1).all():
        return None
    over, under = (np.prod([drawn @ values for values in side], axis=0) for side in (above, below))
    ratios = over[under > 0] / under[under > 0]
    if not len(ratios):
        return None
    return [float(np.percentile(ratios, q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2)]
