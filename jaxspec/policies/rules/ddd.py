"""DDD: stop drafting when the frontier as a whole has become improbable.

Brown et al. 2024 (dynamic depth decoding, arXiv 2409.00142): compare the log of the beams' summed
path probabilities with a threshold, after a few chosen steps only, because each check costs time.
Nothing is trained.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged
from jaxspec.policies.stopping import make_threshold

# Learning to Draft's comparison keeps the authors' threshold and raises the cap. Draft steps are
# LTD's D, which does not count the root's.
PRESETS = {"ddd-paper": {}, "ddd-ltd": {"most": 12}}


@tagged("ddd")
@dataclasses.dataclass(frozen=True)
class DddConfig(PolicyConfig):
    """Constants of the rule.

    Attributes:
      checks: draft steps, without the root's, after which the rule compares.
      most: draft steps after which drafting ends in any case.
    """

    checks: tuple[int, ...] = (5, 7, 9)
    most: int = 11

    def functions(self) -> Functions:
        return _functions(self)


def make_ddd(widths: tuple[int, ...] = (), threshold: float = -0.3, **constants) -> Policy:
    """Make the rule's policy.

    Args:
      widths: see `PolicyConfig`.
      threshold: of the log of summed path probabilities, in nats; drafting ends below it.
      constants: fields of `DddConfig`, see `PRESETS`.
    """
    return Policy(DddConfig(tuple(widths), **constants), make_threshold(threshold))


def sum_frontier(frontier: jax.Array) -> jax.Array:
    """Compute the log of the summed path probabilities of nodes [..., M]: float32 [...]."""
    return jax.nn.logsumexp(frontier, axis=-1)


def passes_ddd(config: DddConfig, threshold, frontier: jax.Array, steps) -> jax.Array:
    """Decide whether to take another draft step: bool [...].

    Args:
      config: constants of the rule.
      threshold: see `make_ddd`.
      frontier: float32 [..., M], path log-probabilities.
      steps: int [...], draft steps so far.
    """
    looks = jnp.any(jnp.asarray(config.checks) == jnp.asarray(steps)[..., None], axis=-1)
    return (steps < config.most) & ~(looks & (sum_frontier(frontier) < threshold))


@functools.lru_cache
def _functions(config: DddConfig) -> Functions:
    def deeper(controls, state, seen):
        return passes_ddd(config, controls.threshold, seen.frontier, seen.steps)

    return Functions(lambda shape: (), Acts(deeper=deeper), keep_state)


for _name, _constants in PRESETS.items():
    register(_name, functools.partial(make_ddd, **_constants))
