"""JetSpec's rules for how many children a node gets: the `caps` of `build_expand`.

All rules take the ranked draft `logprob` float32 [D, K]; some also take the `entropy` float32 [D]
(nats) of the full distributions. They return int32 [D], where entry d is for a node at depth d (the
root has d = 0) and lies between 1 and the tree width K. `rank_decay` returns [D, K], by depth and
rank. The rules are traced into the decode loop.

Source: hao-ai-lab/JetSpec, `jetspec/tree` (top2gap_fanout, depth_rank_histogram, task_router,
reasoning_router, class_histogram), and `ptd/tree` of its history (e162022: entropy_gate,
entropy_soft, entropy_topk, prob_mass, rank_decay, top2gap_budget_gated).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one

CLASSES = ("decisive_task", "balanced_task", "uncertain_task")
_TEMPLATES = {
    "decisive_task": (),
    "balanced_task": (3, 2),
    "uncertain_task": (7, 7),
}  # depths that are not listed get 1
_TASKS = {
    "math": "decisive_task",
    "code": "decisive_task",
    "chat": "uncertain_task",
    "open_ended": "uncertain_task",
}
_REASONING_TASKS = {"reasoning", "cot", "chain_of_thought", "math", "code"}
_REASONING_TEXT = re.compile(
    r"<think>|step 1|let me think|let's think|first,|chain of thought", re.IGNORECASE
)


def mean_gap(logprob: jax.Array) -> jax.Array:
    """Return the gap between the best two log-probabilities, averaged over depths.

    float32 []; 0 for a width of 1.
    """
    if logprob.shape[-1] < 2:
        return jnp.float32(0)
    return jnp.mean(logprob[:, 0] - logprob[:, 1])


def top2gap(
    logprob: jax.Array, beta: float = 1.0, middle: float = 1.0, strength: float = 1.0
) -> jax.Array:
    """Give fewer children where the best candidate leads by more.

    A node gets K * sigmoid(-beta * (gap - middle)) children, rounded half to even. `strength`
    scales how many children are taken away: JetSpec's budget gate is exp(-budget / 16), which
    leaves large trees almost unchanged.
    """
    depths, width = logprob.shape
    if width < 2:
        return jnp.ones(depths, jnp.int32)
    share = 1 - strength * (1 - jax.nn.sigmoid(-beta * (logprob[:, 0] - logprob[:, 1] - middle)))
    return jnp.maximum(jnp.round(width * share), 1).astype(jnp.int32)


def entropy_gate(
    logprob: jax.Array, entropy: jax.Array, low: float = 0.5, high: float = 3.0
) -> jax.Array:
    """Give K children up to an entropy of `low` and one from `high` on.

    In between the number falls linearly, rounded half to even.
    """
    depth, width = logprob.shape
    share = (high - entropy) / (high - low) if high > low else jnp.where(entropy < high, 1.0, 0.0)
    return jnp.clip(jnp.round(width * share), 1, width).astype(jnp.int32)


def entropy_soft(logprob: jax.Array, entropy: jax.Array, alpha: float = 0.5) -> jax.Array:
    """Give K * exp(-alpha * entropy) children, rounded half to even."""
    width = logprob.shape[1]
    return jnp.clip(jnp.round(width * jnp.exp(-alpha * entropy)), 1, width).astype(jnp.int32)


def entropy_topk(logprob: jax.Array, low: float = 0.3, high: float = 1.6) -> jax.Array:
    """Apply `entropy_gate` to the entropy, at most log K, of the K candidates alone."""
    own = jax.nn.log_softmax(logprob, axis=-1)
    p = jnp.exp(own)
    return entropy_gate(logprob, -jnp.sum(jnp.where(p > 0, p * own, 0.0), axis=-1), low, high)


def prob_mass(logprob: jax.Array, least: float = 0.5) -> jax.Array:
    """Give more children where the K candidates hold more of the probability.

    A node gets K * (mass - least) / (1 - least) children, rounded up.
    """
    width = logprob.shape[1]
    share = (jnp.sum(jnp.exp(logprob), axis=-1) - least) / (1 - least)
    return jnp.clip(jnp.ceil(width * share), 1, width).astype(jnp.int32)


def rank_decay(logprob: jax.Array, gamma: float = 0.5) -> np.ndarray:
    """Give a node of rank r K * gamma^r children, rounded half to even.

    This ignores the drafter's probabilities: it is JetSpec's control.
    """
    depth, width = logprob.shape
    caps = np.clip(np.round(width * gamma ** np.arange(width)), 1, width)
    return np.tile(caps.astype(np.int32), (depth, 1))


def rank_histogram(
    logprob: jax.Array, profile: Sequence[Sequence[float]] | None = None, threshold: float = 0.02
) -> np.ndarray:
    """Give one child per rank with a measured acceptance rate of at least `threshold`.

    Rates are `profile[depth][rank]`. Depths without rates get K children. All depths do if there is
    no profile or `threshold` is not positive.
    """
    depth, width = logprob.shape
    if profile is None or threshold <= 0:
        return np.full(depth, width, np.int32)
    counts = [
        sum(rate >= threshold for rate in row[:width]) if len(row) else width
        for row in profile[:depth]
    ]
    return _filled(counts, depth, width, missing=width)


def task_class(
    logprob: jax.Array, task: str | None = None, gap_low: float = 1.0, gap_high: float = 2.0
) -> jax.Array:
    """Return the index int32 [] of the task's class in `CLASSES`.

    The class follows from the task's name if one is given (an unknown task is balanced), else from
    `mean_gap`.
    """
    if task is not None:
        return jnp.int32(
            CLASSES.index(task if task in CLASSES else _TASKS.get(task, "balanced_task"))
        )
    gap = mean_gap(logprob)
    return jnp.where(gap > gap_high, 0, jnp.where(gap < gap_low, 2, 1)).astype(jnp.int32)


def task_router(
    logprob: jax.Array, task: str | None = None, gap_low: float = 1.0, gap_high: float = 2.0
) -> jax.Array:
    """Give each class of task its own numbers of children.

    Decisive tasks get a chain, balanced ones 3 and 2 children at the top two depths, uncertain ones
    7 and 7.
    """
    return class_histogram(logprob, {}, task, gap_low, gap_high)


def class_histogram(
    logprob: jax.Array,
    histograms: Mapping[str, Sequence],
    task: str | None = None,
    gap_low: float = 1.0,
    gap_high: float = 2.0,
) -> jax.Array:
    """Give each class of task the caps that were measured for a model.

    A class that is not in `histograms` gets its `task_router` template.

    Args:
      logprob: float32 [D, K].
      histograms: maps a class name (one of `CLASSES`) to a list of caps per depth, or to acceptance
        rates [depth][rank], where the last rank with a positive rate sets the cap. Depths that are
        not listed get 1.
      task, gap_low, gap_high: see `task_class`.
    """
    depth, width = logprob.shape
    table = [
        _filled(_caps(histograms.get(name, _TEMPLATES[name]), width), depth, width, missing=1)
        for name in CLASSES
    ]
    return jnp.asarray(np.stack(table))[task_class(logprob, task, gap_low, gap_high)]


def reasoning_router(
    logprob: jax.Array, reasoning: bool = False, gap_threshold: float = 1.5
) -> jax.Array:
    """Draft a chain while the model reasons step by step, else branch in two at the first 2 depths.

    The model is taken to reason if the caller says so (`reasoning`, see `looks_like_reasoning`) or
    `mean_gap` exceeds `gap_threshold`.
    """
    depth, width = logprob.shape
    wide = _filled((2, 2), depth, width, missing=1)
    return jnp.where(reasoning | (mean_gap(logprob) > gap_threshold), 1, wide).astype(jnp.int32)


def looks_like_reasoning(text: str = "", task: str = "") -> bool:
    """Whether a prompt's text or its task's name has one of JetSpec's marks of reasoning."""
    return task.lower() in _REASONING_TASKS or _REASONING_TEXT.search(text) is not None


def _caps(rows: Sequence, width: int) -> list[int]:
    """Return caps, given as caps or as acceptance rates.

    Rates give one more than the last of the first `width` ranks with a positive rate.
    """

    def last_positive(rates: Sequence[float]) -> int:
        return max((rank + 1 for rank, rate in enumerate(rates[:width]) if rate > 0), default=1)

    return [int(row) if np.ndim(row) == 0 else last_positive(row) for row in rows]


def _filled(caps: Sequence[int], depth: int, width: int, missing: int) -> np.ndarray:
    """Cut or pad `caps` to `depth` entries, each clipped to 1..`width`."""
    return np.clip([*caps[:depth], *[missing] * (depth - len(caps))], 1, width).astype(np.int32)


Rule = Callable[..., jax.Array]
"""A fan-out rule: a hashable function of `logprob`, or of `logprob` and `entropy`."""

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        top2gap,
        entropy_gate,
        entropy_soft,
        entropy_topk,
        prob_mass,
        rank_decay,
        rank_histogram,
        task_router,
        class_histogram,
        reasoning_router,
    )
}


@dataclasses.dataclass(frozen=True)
class Fanout:
    """A rule with its settings. Equal ones compare equal and share a compilation.

    Attributes:
      rule: name of the rule.
      settings: its settings as JSON with sorted keys.
    """

    rule: str
    settings: str = "{}"

    def __call__(self, *seen: jax.Array) -> jax.Array:
        return RULES[self.rule](*seen, **json.loads(self.settings))

    def __str__(self) -> str:
        settings = json.loads(self.settings)
        made = {"rule": self.rule} | settings
        return json.dumps(made, separators=(",", ":")) if settings else self.rule


def make_fanout(rule: str, **settings: Any) -> Fanout:
    """Make the fan-out rule called `rule` with its settings, for builder `expand`.

    Settings are numbers, names, lists and mappings of them, as in JSON.

    Raises:
      ValueError: unknown rule, or a setting that the rule does not have.
    """
    if rule not in RULES:
        raise ValueError(f"unknown fan-out rule {rule!r}: {choose_one(rule, RULES)}")
    try:
        inspect.signature(RULES[rule]).bind(*[None] * (1 + reads_entropy(RULES[rule])), **settings)
    except TypeError as error:
        raise ValueError(f"fan-out rule {rule}: {error}") from None
    return Fanout(rule, json.dumps(settings, sort_keys=True))


def reads_entropy(rule: Rule) -> bool:
    """Whether a rule is called with the entropies as its second argument."""
    rule = RULES[rule.rule] if isinstance(rule, Fanout) else rule
    return "entropy" in inspect.signature(rule).parameters
