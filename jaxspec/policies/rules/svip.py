"""SVIP: stop drafting after a token of which the drafter was unsure.

Zhang et al. 2024 (arXiv 2411.18462): a token is accepted with probability at least 1 - sqrt(KL /
2), and the divergence is estimated by a multiple of the entropy of the drafter's own distribution.
Nothing is trained. On a tree, the token is that of the frontier's most probable node.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged
from jaxspec.policies.stopping import make_threshold, take_best

# Learning to Draft keeps the authors' constants and takes at most 12 draft steps after the root's.
PRESETS = {"svip-paper": {}, "svip-ltd": {"most": 13}}


@tagged("svip")
@dataclasses.dataclass(frozen=True)
class SvipConfig(PolicyConfig):
    """Constants of the rule.

    Drafting ends when sqrt(scale * entropy) > threshold; the last token is kept.

    Attributes:
      scale: estimate of half the divergence, as a multiple of the entropy in nats.
      most: largest number of drafted tokens of a path.
    """

    scale: float = 0.15
    most: int = 40

    def functions(self) -> Functions:
        return _functions(self)


def make_svip(widths: tuple[int, ...] = (), threshold: float = 0.3, **constants) -> Policy:
    """Make the rule's policy.

    Args:
      widths: see `PolicyConfig`.
      threshold: of the estimated probability of a rejection.
      constants: fields of `SvipConfig`, see `PRESETS`.
    """
    return Policy(SvipConfig(tuple(widths), **constants), make_threshold(threshold))


def passes_svip(config: SvipConfig, threshold, entropy: jax.Array) -> jax.Array:
    """Decide whether to take another draft step: bool [...].

    Args:
      config: constants of the rule.
      threshold: see `make_svip`.
      entropy: nats [...], of the distributions that the last tokens were drawn from.
    """
    return jnp.sqrt(config.scale * entropy) <= threshold


@functools.lru_cache
def _functions(config: SvipConfig) -> Functions:
    def deeper(controls, state, seen):
        sure = passes_svip(config, controls.threshold, take_best(seen.entropy, seen.frontier))
        return sure & (seen.steps + 1 < config.most)

    return Functions(lambda shape: (), Acts(deeper=deeper), keep_state, frozenset({"entropy"}))


for _name, _constants in PRESETS.items():
    register(_name, functools.partial(make_svip, **_constants))
