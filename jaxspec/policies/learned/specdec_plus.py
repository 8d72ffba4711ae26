"""SpecDec++: stop drafting when a rejection along the path has become likely.

Huang, Guo and Wang 2024 (arXiv 2405.19715): stopping is a Markov decision process whose optimal
policy is a threshold on the probability that some drafted token is rejected. A head on the
drafter's hidden state gives the probability that the token just fed to the drafter is accepted if
those before it are; their product along a path is compared with the threshold. `python -m
training.policies.classifiers` trains the head. On a tree, the path is that of the frontier's most
probable node; its own token has not been fed and counts as accepted. The head is that of Learning
to Draft's comparison: one layer with a linear shortcut.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.networks import Layer, init_silu_head, silu_head
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import tagged
from jaxspec.policies.stopping import make_threshold, take_best

WIDTH = 1024


@tagged("specdec-plus")
@dataclasses.dataclass(frozen=True)
class SpecDecPlusConfig(PolicyConfig):
    """Constants of the rule.

    Attributes:
      least, most: bounds on the drafted tokens of a path.
    """

    least: int = 2
    most: int = 20

    def functions(self) -> Functions:
        return _functions(self)


def make_specdec_plus(
    weights: dict[str, Layer], widths: tuple[int, ...] = (), threshold: float = 0.5, **constants
) -> Policy:
    """Make the rule's policy from trained weights.

    Args:
      weights: see `networks.silu_head`.
      widths: see `PolicyConfig`.
      threshold: of the probability of a rejection, 0.3 to 0.7 in the paper.
      constants: fields of `SpecDecPlusConfig`.
    """
    return Policy(SpecDecPlusConfig(tuple(widths), **constants), make_threshold(threshold, weights))


def init_specdec_plus(key: jax.Array, hidden_size: int, width: int = WIDTH) -> dict[str, Layer]:
    """Initialise the weights."""
    return init_silu_head(key, hidden_size, width)


def log_accepted(weights: dict[str, Layer], hidden: jax.Array) -> jax.Array:
    """Compute the log-probability float32 [...] that a fed token is accepted.

    `hidden` [..., E] is the drafter's hidden state after it was fed the token.
    """
    return jax.nn.log_sigmoid(silu_head(weights, hidden.astype(jnp.float32)))


def passes_specdec_plus(
    config: SpecDecPlusConfig, threshold, log_path: jax.Array, drafted
) -> jax.Array:
    """Decide whether to take another draft step: bool [...].

    Args:
      config: constants of the rule.
      threshold: of the probability of a rejection.
      log_path: float32 [...], log-probability that the whole path is accepted.
      drafted: int, drafted tokens of the path.
    """
    likely = 1 - jnp.exp(log_path) <= threshold
    return (likely | (drafted < config.least)) & (drafted < config.most)


@functools.lru_cache
def _functions(config: SpecDecPlusConfig) -> Functions:
    def path(controls, state, seen):
        # The first level was drafted by feeding the root, which is committed.
        fed = jnp.where(
            jnp.asarray(seen.steps) > 0, log_accepted(controls.weights, seen.hidden), 0.0
        )
        return seen.carried + fed

    def deeper(controls, state, seen):
        likely = take_best(path(controls, state, seen), seen.frontier)
        return passes_specdec_plus(config, controls.threshold, likely, seen.steps + 1)

    return Functions(
        lambda shape: (), Acts(deeper=deeper, carry=path), keep_state, frozenset({"hidden"})
    )
