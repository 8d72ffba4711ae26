"""LTD, Learning to Draft: two small networks decide how deep to draft and how many rows to verify.

Zhang et al. 2026 (arXiv 2603.01639): after a draft step, one network decides whether to take
another step; when the tree is complete, the other network decides how many of its rows to verify.
`training.rl.ltd` trains them with PPO. They run inside the round, so no decision leaves the device.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.policies.learned import ltd_features as features
from jaxspec.policies.learned.networks import ACTIVATIONS, check_network, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, RoundShape, keep_state
from jaxspec.policies.registry import tagged
from jaxspec.policies.stopping import take_best

SEES = ("pool", "tree")


@tagged("ltd")
@dataclasses.dataclass(frozen=True)
class LtdConfig(PolicyConfig):
    """Static choices of LTD's policies.

    Attributes:
      width: W, nodes of a level that the dynamic tree drafts from; 0 with `sees` "tree".
      steps: largest number of draft steps after the root's, the code's D.
      depths: numbers of draft steps after which the depth policy decides; after others drafting
        continues. () means that there is no depth policy.
      sizes: numbers of rows that the size policy chooses from, ascending, the root included. ()
        means that there is no size policy.
      sees: scores that the size policy reads: of the `pool` of a dynamic tree, or of the sorted
        rows of any `tree`.
      observes: inputs of both networks, one of `ltd_features.OBSERVES`; H and E need a `pool`.
      hidden: numbers of the drafter's hidden state, if `observes` names H.
      activation: of both networks.
    """

    width: int = 0
    steps: int = 0
    depths: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    sees: str = "pool"
    observes: str = "P+D+L"
    activation: str = "relu"
    hidden: int = 0

    def __post_init__(self):
        for name, known in (
            ("sees", SEES),
            ("observes", features.OBSERVES),
            ("activation", ACTIVATIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: {choose_one(getattr(self, name), known)}"
                )
        if self.depths and not (
            self.sees == "pool" and min(self.depths) >= 0 and max(self.depths) < self.steps
        ):
            raise ValueError(
                f"depths are {list(self.depths)}: "
                f"give numbers of draft steps from 0 to {self.steps - 1}"
            )
        if self.sizes and (list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1):
            raise ValueError(
                f"sizes are {list(self.sizes)}: give numbers of rows in ascending order, from 1"
            )
        if features.beyond_inputs(self.observes, 1, 1) and self.sees == "tree":
            raise ValueError(
                f"observes is {self.observes!r}, which needs the pool of a dynamic tree: "
                "give one of P, P+L, P+D and P+D+L"
            )
        if ("H" in self.observes) != bool(self.hidden):
            raise ValueError(
                f"observes is {self.observes!r} and hidden {self.hidden}: "
                "give the size of the drafter's hidden states exactly if H is observed"
            )
        if not self.depths and not self.sizes:
            raise ValueError("neither depths nor sizes: there is nothing to decide")

    def functions(self) -> Functions:
        return _functions(self)

    def check(self, shape: RoundShape) -> None:
        rows, trained = self.widths[-1:], (self.width, self.width, self.steps)
        if self.sees == "tree":
            if self.sizes and rows != (shape.rows,):
                raise ValueError(
                    f"the policy reads trees of {rows[0]} rows, these have {shape.rows}: "
                    f"give budget={rows[0]}"
                )
        elif (shape.nodes, shape.candidates, shape.steps) != trained:
            raise ValueError(
                f"the policy is for dynamic trees of {self.width} nodes per level "
                f"and {self.steps} draft steps after the root's: "
                f"give builder 'dynamic/w{self.width}' and depth={self.steps + 1}"
            )

    def size_inputs(self) -> int:
        """Return the number of inputs of the size policy."""
        in_pool = features.pool_size(self.width, self.steps)
        scores = in_pool if self.sees == "pool" else self.widths[-1] - 1
        return features.size_inputs(scores, self.observes, self.width, self.hidden)

    def depth_inputs(self) -> int:
        """Return the number of inputs of the depth policy."""
        return features.depth_inputs(self.width, self.observes, self.hidden)


@tagged("ltd-weights")
class LtdWeights(flax.struct.PyTreeNode):
    """Layers of the two networks, see `networks.mlp`; None if there is no such policy."""

    depth: Any = None
    size: Any = None


def make_ltd(config: LtdConfig, depth=None, size=None) -> Policy:
    """Make a policy from trained networks.

    Args:
      config: static choices.
      depth: layers from `config.depth_inputs()` inputs to the logits of stopping and of continuing.
      size: layers from `config.size_inputs()` inputs to a logit for each of `config.sizes`.

    Raises:
      ValueError: the networks do not match the config in kind or size.
    """
    for name, layers, wanted in (("depth", depth, config.depths), ("size", size, config.sizes)):
        if (layers is None) == bool(wanted):
            raise ValueError(
                f"the config {'names a' if wanted else 'has no'} {name} policy: "
                "give layers for exactly the policies that it names"
            )
    if depth is not None:
        check_network(depth, config.depth_inputs(), 2, "depth")
    if size is not None:
        check_network(size, config.size_inputs(), len(config.sizes), "size")
    return Policy(config, LtdWeights(depth, size))


@functools.lru_cache
def _functions(config: LtdConfig) -> Functions:
    # Use NumPy, because this may first run during a trace.
    asked = np.isin(np.arange(config.steps + 1), config.depths)
    needs = frozenset(
        name for letter, name in (("E", "entropy"), ("H", "hidden")) if letter in config.observes
    )

    def beyond(seen) -> features.Beyond:
        if not needs:
            return features.Beyond()
        there = seen.frontier > -jnp.inf
        return features.Beyond(
            None if seen.entropy is None else jnp.where(there, seen.entropy, 0.0),
            None if seen.hidden is None else take_best(seen.hidden, seen.frontier),
        )

    def deeper(controls: LtdWeights, state, seen):
        x = features.depth_observation(
            seen.pool.logprob, seen.context, seen.steps, config.width, config.observes, beyond(seen)
        )
        return ~jnp.asarray(asked)[seen.steps] | (
            jnp.argmax(mlp(controls.depth, x, config.activation), axis=-1) == 1
        )

    def rows(controls: LtdWeights, state, seen):
        if config.sees == "pool":
            # Use the sequence's own steps: the batch may have taken more without it.
            steps = features.steps_taken(seen.pool.logprob, config.width)
            x = features.size_observation(
                seen.pool.logprob, seen.context, steps, config.width, config.observes, beyond(seen)
            )
        else:
            x = features.tree_observation(seen.tree.logprob[:, 1:], seen.context, config.observes)
        logits = mlp(controls.size, x, config.activation)
        logits = jnp.where(features.allowed_sizes(config.sizes, seen.tree.size), logits, -jnp.inf)
        return jnp.array(config.sizes, jnp.int32)[jnp.argmax(logits, axis=-1)]

    acts = Acts(deeper=deeper if config.depths else None, rows=rows if config.sizes else None)
    return Functions(lambda shape: (), acts, keep_state, needs)
