"""JetSpec's rules for how many children a node gets, by its depth: the `caps` of
`build_expand`.

All take the ranked draft `logprob` float32 [D, K], some the `entropy` float32 [D] (nats) of the
full distributions too, and return int32 [D], entry d for a node at depth d (the root's is d = 0),
between 1 and the tree width K; `rank_decay` returns [D, K], by depth and rank. They are traced into
the decode loop. Source: hao-ai-lab/JetSpec, `jetspec/tree` (top2gap_fanout, depth_rank_histogram,
task_router, reasoning_router, class_histogram), and `ptd/tree` of its history (e162022:
entropy_gate, entropy_soft, entropy_topk, prob_mass, rank_decay, top2gap_budget_gated).
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
    """Mean over depths of the gap between the best and the second-best log-probability; float32 [],
    0 for a width of 1.
    """
    if logprob.shape[-1] < 2:
        return jnp.float32(0)
    return jnp.mean(logprob[:, 0] - logprob[:, 1])


def top2gap(
    logprob: jax.Array, beta: float = 1.0, middle: float = 1.0, strength: float = 1.0
) -> jax.Array:
    """Fewer children where the best candidate leads by more: K * sigmoid(-beta * (gap - middle)),
    rounded half to even.

    `strength` scales how many children are taken away: JetSpec's budget gate is exp(-budget / 16),
    which leaves large trees be.
    """
    depths, width = logprob.shape
    if width < 2:
        return jnp.ones(depths, jnp.int32)
    share = 1 - strength * (1 - jax.nn.sigmoid(-beta * (logprob[:, 0] - logprob[:, 1] - middle)))
    return jnp.maximum(jnp.round(width * share), 1).astype(jnp.int32)


def entropy_gate(
    logprob: jax.Array, entropy: jax.Array, low: float = 0.5, high: float = 3.0
) -> jax.Array:
    """K children up to an entropy of `low`, a chain from `high` on, linearly fewer in between,
    rounded half to even.
    """
    depth, width = logprob.shape
    share = (high - entropy) / (high - low) if high > low else jnp.where(entropy < high, 1.0, 0.0)
    return jnp.clip(jnp.round(width * share), 1, width).astype(jnp.int32)


def entropy_soft(logprob: jax.Array, entropy: jax.Array, alpha: float = 0.5) -> jax.Array:
    """K * exp(-alpha * entropy) children, rounded half to even."""
    width = logprob.shape[1]
    return jnp.clip(jnp.round(width * jnp.exp(-alpha * entropy)), 1, width).astype(jnp.int32)


def entropy_topk(logprob: jax.Array, low: float = 0.3, high: float = 1.6) -> jax.Array:
    """`entropy_gate` with the entropy, at most log K, of the K candidates alone."""
    own = jax.nn.log_softmax(logprob, axis=-1)
    p = jnp.exp(own)
    return entropy_gate(logprob, -jnp.sum(jnp.where(p > 0, p * own, 0.0), axis=-1), low, high)


def prob_mass(logprob: jax.Array, least: float = 0.5) -> jax.Array:
    """More children where the K candidates hold more of the probability: K * (mass - least) / (1 -
    least), rounded up.
    """
    width = logprob.shape[1]
    share = (jnp.sum(jnp.exp(logprob), axis=-1) - least) / (1 - least)
    return jnp.clip(jnp.ceil(width * share), 1, width).astype(jnp.int32)


def rank_decay(logprob: jax.Array, gamma: float = 0.5) -> np.ndarray:
    """K * gamma^r children, rounded half to even, for a node of rank r, whatever the drafter says:
    JetSpec's control.
    """
    depth, width = logprob.shape
    caps = np.clip(np.round(width * gamma ** np.arange(width)), 1, width)
    return np.tile(caps.astype(np.int32), (depth, 1))


def rank_histogram(
    logprob: jax.Array, profile: Sequence[Sequence[float]] | None = None, threshold: float = 0.02
) -> np.ndarray:
    """As many children as there are ranks whose measured acceptance rate `profile[depth][rank]`
    reaches `threshold`.

    Depths without rates get K, and so does every depth where there is no profile or `threshold` is
    not positive.
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
    """Index into `CLASSES`, int32 []: by the task's name if one is given (unknown: balanced), else
    by `mean_gap`.
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
    """A chain for decisive tasks, 3 and 2 children at the top for balanced ones, 7 and 7 for
    uncertain ones.
    """
    return class_histogram(logprob, {}, task, gap_low, gap_high)


def class_histogram(
    logprob: jax.Array,
    histograms: Mapping[str, Sequence],
    task: str | None = None,
    gap_low: float = 1.0,
    gap_high: float = 2.0,
) -> jax.Array:
    """Caps per class of task, measured for a model; a class that is not in `histograms` gets its
    `task_router` template.

    Args:
      logprob: float32 [D, K].
      histograms: class name (one of `CLASSES`) to a list of caps per depth, or of acceptance rates
        [depth][rank], whose last positive rank counts. Depths that are not listed get 1.
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
    """A chain while the model reasons step by step, else 2 children at each of the first two
    depths.

    It reasons where the caller knows so (`reasoning`, see `looks_like_reasoning`) or `mean_gap`
    exceeds `gap_threshold`.
    """
    depth, width = logprob.shape
    wide = _filled((2, 2), depth, width, missing=1)
    return jnp.where(reasoning | (mean_gap(logprob) > gap_threshold), 1, wide).astype(jnp.int32)


def looks_like_reasoning(text: str = "", task: str = "") -> bool:
    """Whether a prompt's text or the name of its task holds one of JetSpec's marks of step-by-step
    reasoning.
    """
    return task.lower() in _REASONING_TASKS or _REASONING_TEXT.search(text) is not None


def _caps(rows: Sequence, width: int) -> list[int]:
    """Caps from caps, or from acceptance rates: one more than the last of the first `width` ranks
    with a positive rate.
    """

    def last_positive(rates: Sequence[float]) -> int:
        return max((rank + 1 for rank, rate in enumerate(rates[:width]) if rate > 0), default=1)

    return [int(row) if np.ndim(row) == 0 else last_positive(row) for row in rows]


def _filled(caps: Sequence[int], depth: int, width: int, missing: int) -> np.ndarray:
    """`caps` cut or filled up to `depth` entries, each between 1 and `width`."""
    return np.clip([*caps[:depth], *[missing] * (depth - len(caps))], 1, width).astype(np.int32)


Rule = Callable[..., jax.Array]
"""A fan-out rule: hashable, called with `logprob`, or with `logprob` and `entropy`."""

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
    """A rule with its settings; equal ones are equal values and share a compilation.

    Attributes:
      rule: its name. settings: as JSON, sorted.
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
    """The fan-out rule called `rule` with its settings, as builder `expand` takes it.

    Settings are numbers, names, lists and mappings of them, as in JSON.

    Raises:
      ValueError: unknown rule, or a setting that it does not have.
    """
    if rule not in RULES:
        raise ValueError(f"unknown fan-out rule {rule!r}: choose one of {', '.join(RULES)}")
    try:
        inspect.signature(RULES[rule]).bind(*[None] * (1 + reads_entropy(RULES[rule])), **settings)
    except TypeError as error:
        raise ValueError(f"fan-out rule {rule}: {error}") from None
    return Fanout(rule, json.dumps(settings, sort_keys=True))


def reads_entropy(rule: Rule) -> bool:
    """Whether a rule is called with the entropies as its second argument."""
    rule = RULES[rule.rule] if isinstance(rule, Fanout) else rule
    return "entropy" in inspect.signature(rule).parameters
