"""Draft trees after every token of texts, to replay rounds of any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.output import TracedRound
from jaxspec.call.resolve import resolve_config
from jaxspec.core.params import Params
from jaxspec.round.plan import make_plan

# Texts decoded together while trees are recorded.
_BATCH = 16


class Trees(NamedTuple):
    """Trees of N rows after each of T tokens of P texts.

    Attributes:
      logprob: float32 [P, T, N], of the rows' paths; -inf beyond a tree.
      depth: int32 [P, T, N].
      accepted: bool [P, T, N], rows that the target accepts, the root included. Rows are sorted,
        so the first n rows commit as many tokens as there are accepted rows among them.
    """

    logprob: np.ndarray
    depth: np.ndarray
    accepted: np.ndarray


def record_trees(
    params: Params,
    prompts: Sequence[list[int]],
    *,
    tokens: int,
    budget: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Trees:
    """Decode prompts greedily, and draft a tree of `budget` rows after each of `tokens` tokens."""
    options = {"ignore_eos": True, "budget": budget}
    begun = [output.tokens for output in _decode(params, prompts, tokens, **options)]
    prefixes = [
        [*prompt, *text[:count]]
        for prompt, text in zip(prompts, begun, strict=True)
        for count in range(tokens)
    ]
    most = make_plan(
        params.spec, resolve_config(params.spec, speculation=jaxspec.Speculation(budget=budget))[0]
    ).longest
    capacity = max(map(len, prefixes)) + budget + most
    rounds: list[TracedRound] = []
    for start in range(0, len(prefixes), _BATCH):
        progress(f"trees after {start} of {len(prefixes)} prefixes")
        batch = prefixes[start : start + _BATCH]
        # The first token comes from the prefill; only the first round counts.
        outputs = _decode(params, batch, 1 + most, trace=True, capacity=capacity, **options)
        rounds += [output.rounds[0] for output in outputs]
    shape = len(prompts), tokens, budget
    return Trees(*(array.reshape(shape) for array in _stack(rounds, budget)))


def _decode(params: Params, prompts: Sequence[list[int]], count: int, **options) -> list:
    return jaxspec.decode(params, list(prompts), max_new_tokens=count, **group_options(**options))


def _stack(rounds: Sequence[TracedRound], budget: int) -> Trees:
    """Stack the trees of rounds [R], padded to `budget` rows."""
    logprob = np.full((len(rounds), budget), -np.inf, np.float32)
    depth, accepted = np.zeros(logprob.shape, np.int32), np.zeros(logprob.shape, bool)
    for index, one in enumerate(rounds):
        size = len(one.tree.token)
        logprob[index, :size], depth[index, :size] = one.tree.logprob, one.tree.depth
        accepted[index, list(one.path)] = True
    return Trees(logprob, depth, accepted)
