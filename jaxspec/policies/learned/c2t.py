"""C2T: a classifier decides which candidates are drafted from and verified.

Huo et al. 2025 (arXiv 2502.13652), rebuilt from the paper: at each level, the K candidates with the
largest confidence above a threshold are kept, and only these become rows of the tree. A small
network gives the confidence from the joint probability of a candidate's path, the entropy of the
distribution it was drawn from, and its depth. `python -m jaxspec.training.policies.classifiers`
trains it. Two differences: the network judges the candidates that the tree's builder would draft
from, the best of a level by joint probability, instead of all of them; and entropies are over all
tokens, not over the 1000 most probable.

Learning to Draft's variant reads the log of the joint probability and the depth. Its published code
only filters nodes after the last step, which does not change the verified tree; here the variant
does what C2T does.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.policies.learned.networks import Layer, check_network, init_layers, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import tagged
from jaxspec.policies.stopping import make_threshold

# Inputs and hidden units of the network.
INPUTS, WIDTHS = {"paper": 3, "ltd": 2}, {"paper": 48, "ltd": 64}
PRESETS = {"c2t-paper": {}, "c2t-ltd": {"reads": "ltd", "threshold": 0.5, "most": 10}}


@tagged("c2t")
@dataclasses.dataclass(frozen=True)
class C2TConfig(PolicyConfig):
    """Constants of the rule.

    Attributes:
      reads: `paper` or `ltd`, the features.
      most: largest number of candidates kept per level.
    """

    reads: str = "paper"
    most: int = 15

    def __post_init__(self):
        if self.reads not in INPUTS:
            raise ValueError(f"reads is {self.reads!r}: {choose_one(self.reads, INPUTS)}")

    def functions(self) -> Functions:
        return _functions(self)


def make_c2t(
    weights: list[Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """Make the rule's policy from trained weights.

    Args:
      weights: layers of the network.
      widths: see `PolicyConfig`.
      threshold: least confidence of a kept candidate (the paper: 0.25 to 0.7, which sets the tree's
        size).
      constants: fields of `C2TConfig`, see `PRESETS`.

    Raises:
      ValueError: the weights are of a network with other inputs, or the features are unknown.
    """
    config = C2TConfig(tuple(widths), **constants)
    check_network(weights, INPUTS[config.reads], 1, "C2T")
    return Policy(config, make_threshold(threshold, weights))


def init_c2t(key: jax.Array, reads: str = "paper") -> list[Layer]:
    """Initialise the weights."""
    return init_layers(key, (INPUTS[reads], WIDTHS[reads], 1))


def c2t_features(reads: str, logprob: jax.Array, entropy: jax.Array | None, depth) -> jax.Array:
    """Make the network's inputs, float32 [..., 3 or 2].

    Args:
      reads: `paper` or `ltd`, the features.
      logprob: float32 [...], of paths.
      entropy: [...], nats; not read by `ltd`.
      depth: of the candidates, from 1; the network reads it divided by 10.
    """
    depth = jnp.broadcast_to(jnp.asarray(depth, jnp.float32) / 10, logprob.shape)
    # Empty slots have a score of -inf and are never kept.
    logprob = jnp.maximum(logprob, -100.0)
    return jnp.stack(
        [logprob, depth] if reads == "ltd" else [jnp.exp(logprob), entropy, depth], axis=-1
    )


def c2t_logit(weights: list[Layer], x: jax.Array) -> jax.Array:
    """Compute the confidence in candidates with features [..., 3 or 2]: logits [...]."""
    return mlp(weights, x, "relu")[..., 0]


def choose_candidates(config: C2TConfig, threshold, confidence: jax.Array) -> jax.Array:
    """Choose the candidates of a level to keep: bool [..., M]. Among ties the first one wins.

    Args:
      config: constants of the rule.
      threshold: least confidence.
      confidence: float32 [..., M].
    """
    place = jnp.argsort(jnp.argsort(-confidence, axis=-1, stable=True), axis=-1)
    return (confidence >= threshold) & (place < config.most)


@functools.lru_cache
def _functions(config: C2TConfig) -> Functions:
    def keep(controls, state, seen):
        x = c2t_features(config.reads, seen.frontier, seen.entropy, seen.steps + 1)
        confidence = jax.nn.sigmoid(c2t_logit(controls.weights, x))
        return choose_candidates(config, controls.threshold, confidence) & (
            seen.frontier > -jnp.inf
        )

    needs = frozenset({"entropy"} if config.reads == "paper" else ())
    return Functions(lambda shape: (), Acts(keep=keep), keep_state, needs)
