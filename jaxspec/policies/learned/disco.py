"""DISCO: a small classifier of the drafter's confidence says whether to draft another token.

Mamou et al. 2024 (arXiv 2405.04304): a feed-forward network over the largest probabilities of the
drafter's distribution, its entropy and the token's place gives the probability that the token is
accepted; below a threshold drafting ends. `python -m jaxspec.training.policies.classifiers` trains
it. On a tree, the token is that of the frontier's most probable node.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.networks import Layer, check_network, init_layers, mlp
from jaxspec.policies.protocol import TOP, Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import tagged
from jaxspec.policies.stopping import make_threshold, take_best

# Inputs of the network: ten probabilities, the entropy and the depth. Learning to Draft's network
# has 128 hidden units.
FEATURES, WIDTH = TOP + 2, 128


@tagged("disco")
@dataclasses.dataclass(frozen=True)
class DiscoConfig(PolicyConfig):
    """Constants of the rule.

    Attributes:
      most: largest number of drafted tokens of a path.
    """

    most: int = 13

    def functions(self) -> Functions:
        return _functions(self)


def make_disco(
    weights: list[Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """Make the rule's policy from trained weights.

    Args:
      weights: layers of the network.
      widths: see `PolicyConfig`.
      threshold: of the probability of acceptance; drafting ends below it.
      constants: fields of `DiscoConfig`.

    Raises:
      ValueError: the weights are of a network with other inputs.
    """
    check_network(weights, FEATURES, 1, "Disco")
    return Policy(DiscoConfig(tuple(widths), **constants), make_threshold(threshold, weights))


def init_disco(key: jax.Array) -> list[Layer]:
    """Initialise the weights."""
    return init_layers(key, (FEATURES, WIDTH, 1))


def disco_features(top: jax.Array, entropy: jax.Array, depth) -> jax.Array:
    """Make the network's inputs, float32 [..., 12].

    Args:
      top: float32 [..., 10], largest probabilities.
      entropy: [...], nats.
      depth: of the token, from 1; the network reads it divided by 10.
    """
    depth = jnp.broadcast_to(jnp.asarray(depth, jnp.float32) / 10, entropy.shape)
    return jnp.concatenate([top, entropy[..., None], depth[..., None]], axis=-1)


def disco_logit(weights: list[Layer], x: jax.Array) -> jax.Array:
    """Compute the logit [...] of the probability that a token of features [..., 12] is accepted."""
    return mlp(weights, x, "relu")[..., 0]


@functools.lru_cache
def _functions(config: DiscoConfig) -> Functions:
    def deeper(controls, state, seen):
        top, entropy = (take_best(x, seen.frontier) for x in (seen.top, seen.entropy))
        accepted = jax.nn.sigmoid(
            disco_logit(controls.weights, disco_features(top, entropy, seen.steps + 1))
        )
        return (accepted >= controls.threshold) & (seen.steps + 1 < config.most)

    return Functions(
        lambda shape: (), Acts(deeper=deeper), keep_state, frozenset({"top", "entropy"})
    )
