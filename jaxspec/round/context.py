"""The `Round`, which all phases of a round read and which is made once per trace, and what `grow`
and `verify` hand to the phases after them.

A phase is a function `phase(round, state, …)`; `jaxspec.round.loop` knows their order. Benchmarks
and recorders run single phases through `compile_phase`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxspec.builders import Growth
from jaxspec.core.cache import Rows
from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.recurrent import Stash
from jaxspec.core.sampling.noise import gumbel, sequence_keys
from jaxspec.core.sampling.settings import MIN_TEMPERATURE
from jaxspec.core.state import Accepted, Request
from jaxspec.drafters.base import Drafter, TargetHead
from jaxspec.policies.protocol import Functions
from jaxspec.round.plan import DecodeConfig, Plan, make_plan
from jaxspec.round.quick_jit import QuickJit
from jaxspec.targets.sharding.forward import bind_target


@dataclasses.dataclass(frozen=True)
class Round:
    """A call's weights, request and static settings.

    Attributes:
      params: weights of the target and the drafters.
      request: arrays that the caller asked for: limits, stop ids, seed, sampling, controls.
      config: the call's static settings.
      plan: the functions and sizes that the config selects.
      keys: PRNG keys [B], one per sequence.
    """

    params: Params
    request: Request
    config: DecodeConfig
    plan: Plan
    keys: jax.Array

    @functools.cached_property
    def drafter(self) -> Drafter:
        """Return the drafter's functions; `ar` has none and raises ValueError."""
        if self.plan.drafter is None:
            raise ValueError("autoregressive decoding has no drafter")
        return self.plan.drafter

    @functools.cached_property
    def growth(self) -> Growth:
        """Return how the trees grow; `ar` has no trees and raises ValueError."""
        if self.plan.growth is None:
            raise ValueError("autoregressive decoding has no draft tree")
        return self.plan.growth

    @functools.cached_property
    def policy(self) -> Functions:
        """Return the policy's functions; a call without a policy raises ValueError."""
        if self.plan.policy is None:
            raise ValueError("this call has no policy")
        return self.plan.policy

    @functools.cached_property
    def target(self) -> Callable[..., Any]:
        """Return the target's forward pass with its weights bound; `method` selects another method."""
        return bind_target(self.plan.target, self.params.target)

    @property
    def drafter_variables(self) -> Any:
        """Return the drafter's weights."""
        # XLA would split a table that is looked up and multiplied by, and add up what it looks up.
        return constrain(self.params.drafter(self.config.drafter), PartitionSpec())

    @functools.cached_property
    def target_head(self) -> TargetHead:
        """Return the target's embedding and output projection, which drafters borrow."""
        return TargetHead(
            embed=functools.partial(self.target, method="embed"),
            unembed=functools.partial(self.target, method="logits"),
        )

    @functools.cached_property
    def feature_layers(self) -> tuple[int, ...]:
        """Return the target layers whose outputs the drafter reads."""
        return self.plan.drafter.feature_layers if self.plan.drafter else ()

    @property
    def decodes_greedily(self) -> jax.Array:
        """Whether each sequence of a call with mixed settings is decoded greedily, bool [B]."""
        return self.request.sampling.temperature < MIN_TEMPERATURE

    @property
    def coupled(self) -> bool:
        """Whether candidates are ranked under the target's noise, if there is noise."""
        return self.config.acceptance == "match" and self.config.coupled

    @functools.cached_property
    def score_temperatures(self) -> tuple[float, float]:
        """Divisors of the draft logits when paths of greedy and of sampled sequences are scored."""
        given = self.config.score_temperature
        if given is not None:
            return given, given
        return self.params.spec.drafter(self.config.drafter).score_temperature

    @property
    def score_temperature(self) -> float | jax.Array:
        """The divisor of this call; [B, 1, 1] if its sequences have settings of their own."""
        greedy, sampled = self.score_temperatures
        if self.config.sampling.mixed:
            return jnp.where(self.decodes_greedily, greedy, sampled)[:, None, None]
        return greedy if self.config.sampling.greedy else sampled

    @functools.cached_property
    def score_scale(self) -> float | None:
        """Divisor of the drafter's logits in the scores that the policy reads.

        None: it reads the scores of the tree, or these are the same.
        """
        policy, request = self.config.policy, self.request
        if policy is None or policy.score_scale is None or self.growth.confidence:
            return None
        adjusted = request.sampling.penalties is not None or request.stop_from is not None
        same = self.config.sampling.greedy and not adjusted
        return (
            None
            if same and self.score_temperatures[0] == policy.score_scale
            else policy.score_scale
        )

    @property
    def figure_scale(self) -> float:
        """Divisor of the drafter's logits in the entropies and probabilities that a policy reads."""
        policy = self.config.policy
        return 1.0 if policy is None or policy.score_scale is None else policy.score_scale

    def noise(self, position: jax.Array, count: int) -> jax.Array | None:
        """Draw the Gumbel noise of `count` tokens from positions `position` int32 [B] on.

        Returns:
          float32 [B, count, V], or None for greedy decoding; zeros for greedy sequences beside
          others.
        """
        if self.config.sampling.greedy:
            return None
        positions = position[:, None] + jnp.arange(count)
        vocab = self.params.spec.target.vocab_size
        if not self.config.sampling.mixed:
            return gumbel(self.keys, positions, vocab)
        samples = ~self.decodes_greedily

        def draw() -> jax.Array:
            return jnp.where(samples[:, None, None], gumbel(self.keys, positions, vocab), 0.0)

        # Threefry of a whole vocabulary takes time that greedy sequences alone need not spend.
        return jax.lax.cond(samples.any(), draw, lambda: jnp.zeros((*positions.shape, vocab)))


class Drawn(NamedTuple):
    """The distributions that a tree's candidates were drawn from.

    Attributes:
      logprob: float32 [B, S, V], of the round's slots.
      below: int32 [B, N], the slot that each row's children were drawn from; None: that of the
        row's depth.
    """

    logprob: jax.Array
    below: jax.Array | None = None


class Verified(NamedTuple):
    """The accepted path of a verified tree.

    Attributes:
      accepted: the path.
      k, v: of each group of layers [L, B, A, K, D], keys and values of its rows.
      features: [B, A, F], features of its rows.
      hidden: [B, A, E], hidden states of its rows; None unless the caller needs them.
      stash: of each group of recurrent layers, of its rows.
    """

    accepted: Accepted
    k: Rows
    v: Rows
    features: jax.Array
    hidden: jax.Array | None = None
    stash: tuple[Stash, ...] = ()


def make_round(params: Params, request: Request, config: DecodeConfig) -> Round:
    """Make the round of a call, inside `jax.jit`, where `params` and `request` are traced."""
    # Keys are made here, outside the loop over rounds, and not by a program of their own.
    keys = sequence_keys(jnp.asarray(request.seed), request.sequence)
    return Round(params, request, config, make_plan(params.spec, config), keys)


def compile_phase(phase: Callable[..., Any], *, donate_state: bool = False) -> Callable[..., Any]:
    """Compile `phase(round, state, …)` by itself.

    Args:
      donate_state: let the program reuse the state's buffers; the caller must not read them again.

    Returns:
      `program(params, request, state, …, config=config)`.
    """

    def program(
        params: Params, request: Request, state: Any, *args: Any, config: DecodeConfig
    ) -> Any:
        return phase(make_round(params, request, config), state, *args)

    donated = ("state",) if donate_state else ()
    return QuickJit(program, static_argnames=("config",), donate_argnames=donated)
