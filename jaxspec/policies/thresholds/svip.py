"""SVIP: stop drafting once the drafter was unsure of its last token.

Zhang et al. 2024 (arXiv 2411.18462): a token is accepted with probability at least 1 - sqrt(KL /
2), and the divergence is estimated by a multiple of the entropy of the drafter's own distribution.
Nothing is trained. On a tree, the token is that of the frontier's likeliest node.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged
from jaxspec.policies.thresholds.frontier import at_best
from jaxspec.policies.thresholds.threshold import thresholded

# Learning to Draft keeps the authors' constants and drafts 12 steps after the root's at most.
PRESETS = {"svip-paper": {}, "svip-ltd": {"most": 13}}


@dataclasses.dataclass(frozen=True)
class SvipSettings(Settings):
    """Constants of the rule: drafting ends, the last token kept, where sqrt(scale * entropy) >
    threshold.

    Attributes:
      scale: the estimate of half the divergence, over the entropy in nats.
      most: drafted tokens of a path, at most.
    """

    scale: float = 0.15
    most: int = 40

    def functions(self) -> Functions:
        return _functions(self)


def make_svip(widths: tuple[int, ...] = (), threshold: float = 0.3, **constants) -> Policy:
    """The rule.

    Args:
      threshold: of the estimated probability of a rejection. constants: as of `SvipSettings`, see
        `PRESETS`.
    """
    return Policy(SvipSettings(tuple(widths), **constants), thresholded(threshold))


def is_sure(settings: SvipSettings, threshold, entropy: jax.Array) -> jax.Array:
    """Whether to draft on after tokens drawn from distributions of so much entropy (nats [...]):
    bool [...].
    """
    return jnp.sqrt(settings.scale * entropy) <= threshold


@functools.lru_cache
def _functions(settings: SvipSettings) -> Functions:
    def deeper(controls, state, seen):
        sure = is_sure(settings, controls.threshold, at_best(seen.entropy, seen.frontier))
        return sure & (seen.steps + 1 < settings.most)

    return Functions(lambda shape: (), Acts(deeper=deeper), unchanged, frozenset({"entropy"}))
