"""DISCO: a small classifier of the drafter's confidence says whether to draft another token.

Mamou et al. 2024 (arXiv 2405.04304): a feed-forward network over the largest probabilities of the
drafter's distribution, its entropy and the token's place gives the probability that the token is
accepted; below a threshold drafting ends. Trained by `python -m training.policies.heads`. On a
tree, the token is that of the frontier's likeliest node.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.heads import Layer, init_layers
from jaxspec.policies.learned.mlp import check_layers, mlp
from jaxspec.policies.protocol import TOP, Acts, Functions, Policy, Settings, unchanged
from jaxspec.policies.thresholds.frontier import at_best
from jaxspec.policies.thresholds.threshold import thresholded

# Numbers that the network reads: ten probabilities, the entropy, the depth. Learning to Draft's has
# 128 hidden units.
FEATURES, WIDTH = TOP + 2, 128


@dataclasses.dataclass(frozen=True)
class DiscoSettings(Settings):
    """Constants of the rule.

    Attributes:
      most: drafted tokens of a path, at most.
    """

    most: int = 13

    def functions(self) -> Functions:
        return _functions(self)


def make_disco(
    weights: list[Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """The rule with trained weights.

    Args:
      threshold: of the probability of acceptance. constants: as of `DiscoSettings`.

    Raises:
      ValueError: the weights are not of a network with these inputs.
    """
    check_layers(weights, FEATURES, 1, "Disco")
    return Policy(DiscoSettings(tuple(widths), **constants), thresholded(threshold, weights))


def init_weights(key: jax.Array) -> list[Layer]:
    """Weights before training."""
    return init_layers(key, (FEATURES, WIDTH, 1))


def features(top: jax.Array, entropy: jax.Array, depth) -> jax.Array:
    """float32 [..., 12] of probabilities [..., 10], entropy [...] in nats and depth from 1, which
    counts in tens.
    """
    depth = jnp.broadcast_to(jnp.asarray(depth, jnp.float32) / 10, entropy.shape)
    return jnp.concatenate([top, entropy[..., None], depth[..., None]], axis=-1)


def logit(weights: list[Layer], x: jax.Array) -> jax.Array:
    """Of the probability [...] that a token with features [..., 12] is accepted."""
    return mlp(weights, x, "relu")[..., 0]


@functools.lru_cache
def _functions(settings: DiscoSettings) -> Functions:
    def deeper(controls, state, seen):
        top, entropy = (at_best(x, seen.frontier) for x in (seen.top, seen.entropy))
        accepted = jax.nn.sigmoid(logit(controls.weights, features(top, entropy, seen.steps + 1)))
        return (accepted >= controls.threshold) & (seen.steps + 1 < settings.most)

    return Functions(
        lambda shape: (), Acts(deeper=deeper), unchanged, frozenset({"top", "entropy"})
    )
