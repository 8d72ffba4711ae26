"""The programs of an engine: each takes arrays of the host and changes the state of the slots.

What an engine runs passes through `Programs.run`, so other processes that get the same names and
arrays make the same calls (`jaxspec.serve.follow`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.engine.plan import DecodeConfig, Plan, make_plan
from jaxspec.engine.session import full_precision
from jaxspec.serve.clean import clean_slot
from jaxspec.serve.copy import copy_slot
from jaxspec.serve.feed import feed
from jaxspec.serve.logprobs import rank_tokens
from jaxspec.serve.rounds import Control, Rules
from jaxspec.serve.settings import make_settings
from jaxspec.serve.slots import SlotsState, make_slots, set_lengths
from jaxspec.serve.visit import visit

# Integers of a visit's control, before the seconds of rounds.
_CHOICES = 4


@dataclasses.dataclass
class Programs:
    """The programs over B slots, and their state. One thread uses it.

    Attributes:
      params: the model, with panels.
      config: with sampling `MIXED`.
      rules: how rows are shared.
      slots: B.
      capacity: rows S of the caches.
      logprobs: most alternatives of a token; 0: no log-probabilities.
      state: of the slots.
    """

    params: Params
    config: DecodeConfig
    rules: Rules
    slots: int
    capacity: int
    logprobs: int = 0

    def __post_init__(self) -> None:
        self.run("reset")

    @property
    def plan(self) -> Plan:
        """The functions and sizes that the config selects."""
        return make_plan(self.params.spec, self.config)

    @property
    def takes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Shapes of the arrays that each program takes; all are int32, floats by their bits."""
        control = (_CHOICES + len(self.rules.edges),)
        return {
            "reset": (),
            "feed": ((), (1, self.capacity), (4,)),
            "copy": ((2,),),
            "clean": ((),),
            "visit": ((), make_settings(self.slots).shape, control),
            "rank": ((self.slots,),),
            "set_lengths": ((self.slots,),),
        }

    def run(self, name: str, *arrays: np.ndarray) -> Any:
        """Run a program, without waiting for it.

        Args:
          name: of `takes`.
          arrays: which the caller does not change any more.

        Returns:
          What the program does besides changing the state; None for most.
        """
        with full_precision(self.params):
            return getattr(self, f"_{name}")(*arrays)

    def _reset(self) -> None:
        """Free all slots."""
        keep_hidden = self.logprobs > 0
        self.state = make_slots(self.params, self.config, self.slots, self.capacity, keep_hidden)

    def _feed(self, follows: np.ndarray, tokens: np.ndarray, where: np.ndarray) -> None:
        """Run chunks of a prompt into a slot, see `jaxspec.serve.feed.feed`."""
        params, state, config = self._lend(follows)
        self._keep(feed(params, state, tokens, where, config=config))

    def _copy(self, slots: np.ndarray) -> None:
        """Copy what the first slot's caches hold into the second."""
        self.state = copy_slot(self.params, self.state, slots, config=self.config)

    def _clean(self, slot: np.ndarray) -> None:
        """Clear a slot of values that are not finite."""
        self.state = clean_slot(self.params, self.state, slot, config=self.config)

    def _visit(self, follows: np.ndarray, settings: np.ndarray, control: np.ndarray) -> jax.Array:
        """Run rounds, and return the report."""
        rounds, want_exit, drafts, forced = control[:_CHOICES]
        seconds = control[_CHOICES:].view(np.float32)
        chosen = Control(rounds, np.bool_(want_exit), np.bool_(drafts), forced, seconds)
        params, state, config = self._lend(follows)
        state, report = visit(params, state, settings, chosen, config=config, rules=self.rules)
        self._keep(state)
        return report

    def _rank(self, wanted: np.ndarray) -> dict[int, jax.Array]:
        """Rank the tokens of the last visit of the slots where `wanted` is not 0."""
        options = {"config": self.config, "count": self.logprobs}
        return {
            slot: rank_tokens(self.params, self.state, np.int32(slot), **options)
            for slot in np.flatnonzero(wanted).tolist()
        }

    def _set_lengths(self, lengths: np.ndarray) -> None:
        """Set how many tokens each sequence has, to time rounds."""
        self.state = set_lengths(self.state, lengths)

    def _lend(self, follows: np.ndarray) -> tuple[Params, SlotsState, DecodeConfig]:
        """Return what a program takes: nothing of the drafter, unless it follows a slot.

        The host needs some time for each array of a call.
        """
        if follows or self.plan.drafter is None:
            return self.params, self.state, self.config
        decode = self.state.decode.replace(draft=None, pending=None)
        config = DecodeConfig("ar", self.config.sampling)
        return self.params.replace(drafters={}), self.state.replace(decode=decode), config

    def _keep(self, state: SlotsState) -> None:
        """Keep the state that a program returned, and what was not lent to it."""
        held = self.state.decode
        if state.decode.pending is None:
            decode = state.decode.replace(draft=held.draft, pending=held.pending)
            state = state.replace(decode=decode)
        self.state = state


def pack_control(control: Control) -> np.ndarray:
    """Return what the host decides for a visit as one array, as `Programs` takes it."""
    *choices, seconds = control
    bits = np.asarray(seconds, np.float32).view(np.int32)
    return np.concatenate([np.asarray(choices, np.int32), bits])
