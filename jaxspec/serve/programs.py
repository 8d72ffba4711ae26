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
from jaxspec.engine.plan import DecodeConfig, Plan
from jaxspec.engine.session import full_precision
from jaxspec.serve.clean import clean_slot
from jaxspec.serve.copy import copy_slot
from jaxspec.serve.drafters import Config, join_plans, list_configs
from jaxspec.serve.feed import feed
from jaxspec.serve.logprobs import rank_tokens
from jaxspec.serve.publish import replace_drafter
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
      config: with sampling `MIXED`; of several drafters, a tuple of their configs.
      rules: how rows are shared.
      slots: B.
      capacity: rows S of the caches.
      logprobs: most alternatives of a token; 0: no log-probabilities.
      state: of the slots.
    """

    params: Params
    config: Config
    rules: Rules
    slots: int
    capacity: int
    logprobs: int = 0

    def __post_init__(self) -> None:
        self.run("reset")

    @property
    def plan(self) -> Plan:
        """The functions and sizes that the config selects, see `join_plans`."""
        return join_plans(self.params.spec, self.config)

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

    def publish(self, method: str, weights: Any) -> None:
        """Replace a drafter's weights, see `jaxspec.serve.publish.replace_drafter`."""
        self.params = replace_drafter(self.params, method, weights)

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

    def _feed(self, reader: np.ndarray, tokens: np.ndarray, where: np.ndarray) -> None:
        """Run chunks of a prompt into a slot, see `jaxspec.serve.feed.feed`."""
        params, state, config = self._lend(int(reader))
        self._keep(feed(params, state, tokens, where, config=config), int(reader))

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
        reader = None if follows else 0
        params, state, config = self._lend(reader)
        state, report = visit(params, state, settings, chosen, config=config, rules=self.rules)
        self._keep(state, reader)
        return report

    def _rank(self, wanted: np.ndarray) -> dict[int, jax.Array]:
        """Rank the tokens of the last visit of the slots where `wanted` is not 0."""
        options = {"config": list_configs(self.config)[0], "count": self.logprobs}
        return {
            slot: rank_tokens(self.params, self.state, np.int32(slot), **options)
            for slot in np.flatnonzero(wanted).tolist()
        }

    def _set_lengths(self, lengths: np.ndarray) -> None:
        """Set how many tokens each sequence has, to time rounds."""
        self.state = set_lengths(self.state, lengths)

    def _lend(self, reader: int | None) -> tuple[Params, SlotsState, Config]:
        """Return what a program takes: no more of the drafters than it needs.

        The host needs some time for each array of a call.

        Args:
          reader: number of the only drafter that the program runs, from 1; 0: none; None: all.
        """
        params, decode = self.params, self.state.decode
        configs = list_configs(self.config)
        if self.plan.drafter is None or reader is None or (reader and len(configs) == 1):
            return params, self.state, self.config
        if reader:
            config = configs[reader - 1]
            drafters = {config.method: params.drafter(config.method)}
            decode = decode.replace(draft=decode.draft[reader - 1])
        else:
            config, drafters = DecodeConfig("ar", configs[0].sampling), {}
            decode = decode.replace(draft=None, pending=None)
        return params.replace(drafters=drafters), self.state.replace(decode=decode), config

    def _keep(self, state: SlotsState, reader: int | None) -> None:
        """Keep the state that a program returned, and what `_lend` did not lend to it."""
        decode, held = state.decode, self.state.decode
        if reader == 0:
            decode = decode.replace(draft=held.draft, pending=held.pending)
        elif reader is not None and isinstance(self.config, tuple):
            drafts = (*held.draft[: reader - 1], decode.draft, *held.draft[reader:])
            decode = decode.replace(draft=drafts)
        self.state = state.replace(decode=decode)


def pack_control(control: Control) -> np.ndarray:
    """Return what the host decides for a visit as one array, as `Programs` takes it."""
    *choices, seconds = control
    bits = np.asarray(seconds, np.float32).view(np.int32)
    return np.concatenate([np.asarray(choices, np.int32), bits])
