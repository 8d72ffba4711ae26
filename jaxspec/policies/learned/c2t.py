"""C2T: a classifier of candidates decides which of them are drafted from and verified.

Huo et al. 2025 (arXiv 2502.13652), rebuilt from the paper: level by level, of the candidates the K
with the largest confidence above a threshold go on; they, and no others, become rows of the tree.
The confidence is a small network's, of the joint probability of a candidate's path, the entropy of
the distribution it is from, and its depth. Trained by `python -m training.policies.heads`. Here the
network is asked about the candidates that the tree's builder would draft from, the best of a level
by joint probability, instead of about all of them, and entropies are of all tokens, not of the 1000
likeliest.

Learning to Draft's variant reads the log of the joint probability and the depth. Its published code
only filters the nodes behind the last step, which leaves the verified tree as it is; here it does
what C2T does.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.heads import Layer, init_layers
from jaxspec.policies.learned.mlp import check_layers, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged
from jaxspec.policies.thresholds.threshold import thresholded

# Numbers read and hidden units.
INPUTS, WIDTHS = {"paper": 3, "ltd": 2}, {"paper": 48, "ltd": 64}
PRESETS = {"c2t-paper": {}, "c2t-ltd": {"reads": "ltd", "threshold": 0.5, "most": 10}}


@dataclasses.dataclass(frozen=True)
class C2TSettings(Settings):
    """Constants of the rule.

    Attributes:
      reads: `paper` or `ltd`, the features.
      most: candidates of a level that go on.
    """

    reads: str = "paper"
    most: int = 15

    def __post_init__(self):
        if self.reads not in INPUTS:
            raise ValueError(f"reads is {self.reads!r}: choose one of {', '.join(INPUTS)}")

    def functions(self) -> Functions:
        return _functions(self)


def make_c2t(
    weights: list[Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """The rule with trained weights.

    Args:
      threshold: least confidence of a candidate that goes on (the paper: 0.25 to 0.7, which sets
        the tree's size).
      constants: as of `C2TSettings`, see `PRESETS`.

    Raises:
      ValueError: the weights are not of a network with these inputs, or unknown features.
    """
    settings = C2TSettings(tuple(widths), **constants)
    check_layers(weights, INPUTS[settings.reads], 1, "C2T")
    return Policy(settings, thresholded(threshold, weights))


def init_weights(key: jax.Array, reads: str = "paper") -> list[Layer]:
    """Weights before training."""
    return init_layers(key, (INPUTS[reads], WIDTHS[reads], 1))


def features(reads: str, logprob: jax.Array, entropy: jax.Array | None, depth) -> jax.Array:
    """float32 [..., 3 or 2] of path log-probabilities and entropies in nats [...] and of the depth
    from 1, in tens.
    """
    depth = jnp.broadcast_to(jnp.asarray(depth, jnp.float32) / 10, logprob.shape)
    # Nodes that are not there have no finite score, and are never kept.
    logprob = jnp.maximum(logprob, -100.0)
    return jnp.stack(
        [logprob, depth] if reads == "ltd" else [jnp.exp(logprob), entropy, depth], axis=-1
    )


def logit(weights: list[Layer], x: jax.Array) -> jax.Array:
    """Of the confidence [...] in candidates with features [..., 3 or 2]."""
    return mlp(weights, x, "relu")[..., 0]


def chosen(settings: C2TSettings, threshold, confidence: jax.Array) -> jax.Array:
    """Which candidates [..., M] of a level go on: bool [..., M]; equals by index."""
    place = jnp.argsort(jnp.argsort(-confidence, axis=-1, stable=True), axis=-1)
    return (confidence >= threshold) & (place < settings.most)


@functools.lru_cache
def _functions(settings: C2TSettings) -> Functions:
    def keep(controls, state, seen):
        x = features(settings.reads, seen.frontier, seen.entropy, seen.steps + 1)
        confidence = jax.nn.sigmoid(logit(controls.weights, x))
        return chosen(settings, controls.threshold, confidence) & (seen.frontier > -jnp.inf)

    needs = frozenset({"entropy"} if settings.reads == "paper" else ())
    return Functions(lambda shape: (), Acts(keep=keep), unchanged, needs)
