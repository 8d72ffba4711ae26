"""DDD: stop drafting when the nodes that would be drafted from are unlikely, all taken together.

Brown et al. 2024 (dynamic depth decoding, arXiv 2409.00142): the log of the summed path
probabilities of the beams is compared with a threshold, after a few chosen steps only, since each
look costs time. Nothing is trained.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged
from jaxspec.policies.thresholds.threshold import thresholded

# Learning to Draft compares with the authors' threshold at a larger cap; draft steps are LTD's D,
# the root's not counted.
PRESETS = {"ddd-paper": {}, "ddd-ltd": {"most": 12}}


@dataclasses.dataclass(frozen=True)
class DddSettings(Settings):
    """Constants of the rule.

    Attributes:
      checks: draft steps (the root's not counted) after which the rule looks.
      most: draft steps after which it ends in any case.
    """

    checks: tuple[int, ...] = (5, 7, 9)
    most: int = 11

    def functions(self) -> Functions:
        return _functions(self)


def make_ddd(widths: tuple[int, ...] = (), threshold: float = -0.3, **constants) -> Policy:
    """The rule.

    Args:
      threshold: of the log of summed path probabilities, nats; below it drafting ends.
      constants: as of `DddSettings`, see `PRESETS`.
    """
    return Policy(DddSettings(tuple(widths), **constants), thresholded(threshold))


def together(frontier: jax.Array) -> jax.Array:
    """Log of the summed path probabilities float32 [...] of the nodes [..., M]."""
    return jax.nn.logsumexp(frontier, axis=-1)


def goes_on(settings: DddSettings, threshold, frontier: jax.Array, steps) -> jax.Array:
    """Whether to draft on, bool [...]: path log-probabilities [..., M] after `steps` draft
    steps.
    """
    looks = jnp.any(jnp.asarray(settings.checks) == jnp.asarray(steps)[..., None], axis=-1)
    return (steps < settings.most) & ~(looks & (together(frontier) < threshold))


@functools.lru_cache
def _functions(settings: DddSettings) -> Functions:
    def deeper(controls, state, seen):
        return goes_on(settings, controls.threshold, seen.frontier, seen.steps)

    return Functions(lambda shape: (), Acts(deeper=deeper), unchanged)
