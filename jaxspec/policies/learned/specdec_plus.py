"""SpecDec++: stop drafting when a rejection on the way has become likely.

Huang, Guo and Wang 2024 (arXiv 2405.19715): stopping is a Markov decision process whose optimal
policy is a threshold on the probability that some drafted token is rejected. A head on the
drafter's hidden state gives the probability that the token just fed to the drafter is accepted if
those before it are; their product along a path is compared with the threshold. Trained by `python
-m training.policies.heads`. On a tree, the path is that of the frontier's likeliest node; its own
token, not yet fed, counts as accepted. The head is that of Learning to Draft's comparison: one
layer with a linear shortcut beside it.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.heads import Layer, init_silu_head, silu_head
from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged
from jaxspec.policies.thresholds.frontier import at_best
from jaxspec.policies.thresholds.threshold import thresholded

WIDTH = 1024


@dataclasses.dataclass(frozen=True)
class SpecDecPlusSettings(Settings):
    """Constants of the rule.

    Attributes:
      least, most: drafted tokens of a path.
    """

    least: int = 2
    most: int = 20

    def functions(self) -> Functions:
        return _functions(self)


def make_specdec_plus(
    weights: dict[str, Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """The rule with trained weights, see `heads.silu_head`.

    Args:
      threshold: of the probability of a rejection, 0.3 to 0.7 in the paper. constants: as of
        `SpecDecPlusSettings`.
    """
    return Policy(SpecDecPlusSettings(tuple(widths), **constants), thresholded(threshold, weights))


def init_weights(key: jax.Array, hidden_size: int, width: int = WIDTH) -> dict[str, Layer]:
    """Weights before training."""
    return init_silu_head(key, hidden_size, width)


def log_accepted(weights: dict[str, Layer], hidden: jax.Array) -> jax.Array:
    """Log-probability float32 [...] that the token is accepted whose feeding gave the hidden state
    [..., E].
    """
    return jax.nn.log_sigmoid(silu_head(weights, hidden.astype(jnp.float32)))


def goes_on(settings: SpecDecPlusSettings, threshold, log_path: jax.Array, drafted) -> jax.Array:
    """Whether to draft on, bool [...], when a path of `drafted` tokens is accepted with probability
    exp(log_path) [...].
    """
    likely = 1 - jnp.exp(log_path) <= threshold
    return (likely | (drafted < settings.least)) & (drafted < settings.most)


@functools.lru_cache
def _functions(settings: SpecDecPlusSettings) -> Functions:
    def path(controls, state, seen):
        # What was fed for the first level is the root, which is committed.
        fed = jnp.where(
            jnp.asarray(seen.steps) > 0, log_accepted(controls.weights, seen.hidden), 0.0
        )
        return seen.carried + fed

    def deeper(controls, state, seen):
        likely = at_best(path(controls, state, seen), seen.frontier)
        return goes_on(settings, controls.threshold, likely, seen.steps + 1)

    return Functions(
        lambda shape: (), Acts(deeper=deeper, carry=path), unchanged, frozenset({"hidden"})
    )
