"""The engine's side of the device: the state, the settings, and the programs that run on it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.core.state import Accepted, Tree
from jaxspec.engine.plan import DecodeConfig, Plan, make_plan
from jaxspec.engine.session import full_precision
from jaxspec.serve.clean import clean_slot
from jaxspec.serve.copy import copy_slot
from jaxspec.serve.feed import feed
from jaxspec.serve.logprobs import rank_tokens, read_logprobs
from jaxspec.serve.requests import TokenLogprob
from jaxspec.serve.rounds import Control, Rules
from jaxspec.serve.settings import make_settings, set_column, write_settings
from jaxspec.serve.slots import MOST_ROUNDS, make_slots
from jaxspec.serve.visit import Report, read_report, visit


@dataclasses.dataclass
class Device:
    """B slots on the device. One thread uses it.

    Attributes:
      params: the model, with panels.
      config: with sampling `MIXED`.
      rules: how rows are shared.
      slots: B.
      capacity: rows of the caches.
      logprobs: most alternatives of a token; 0: no log-probabilities.
      drafted: seconds of a drafted round of each number of rows, as far as they are known.
    """

    params: Params
    config: DecodeConfig
    rules: Rules
    slots: int
    capacity: int
    logprobs: int = 0

    def __post_init__(self) -> None:
        self.drafted = np.ones(len(self.rules.edges), np.float32)
        self.reset()

    @property
    def plan(self) -> Plan:
        """The functions and sizes that the config selects."""
        return make_plan(self.params.spec, self.config)

    @property
    def waiting(self) -> int:
        """How many tokens of a slot may wait until the drafter reads them."""
        pending = self.state.decode.pending
        return 0 if pending is None else pending.token.shape[1]

    def reset(self) -> None:
        """Free all slots."""
        with full_precision(self.params):
            self.state = make_slots(
                self.params, self.config, self.slots, self.capacity, self.logprobs > 0
            )
        self.settings = make_settings(self.slots)

    def feed(self, slot: int, prompt: list[int], start: int, end: int) -> None:
        """Run `prompt[start:end]` into a slot; `start` is a multiple of the chunk.

        The slot's next root is the prompt's last token.
        """
        tokens = np.zeros((1, self.capacity), np.int32)
        tokens[0, : len(prompt)] = prompt
        where = np.asarray([slot, start, end, prompt[-1]], np.int32)
        with full_precision(self.params):
            self.state = feed(self.params, self.state, tokens, where, config=self.config)

    def copy(self, source: int, target: int) -> None:
        """Copy what a slot's caches hold into another slot, which is then fed."""
        slots = np.asarray([source, target], np.int32)
        with full_precision(self.params):
            self.state = copy_slot(self.params, self.state, slots, config=self.config)

    def clean(self, slot: int) -> None:
        """Clear a slot of values that are not finite."""
        with full_precision(self.params):
            self.state = clean_slot(self.params, self.state, np.int32(slot), config=self.config)

    def open(self, slot: int, settings: dict[str, Any], stop: tuple[int, ...]) -> None:
        """Let a slot decode from the next visit on."""
        write_settings(self.settings, slot, active=1, stop=stop, **settings)

    def limit(self, slot: int, limit: int, stop_from: int) -> None:
        """Set how many tokens a slot may still generate, and before how many no stop id counts."""
        set_column(self.settings, slot, "limit", limit)
        set_column(self.settings, slot, "stop_from", stop_from)

    def close(self, slot: int) -> None:
        """Free a slot."""
        write_settings(self.settings, slot, stop=())

    def visit(
        self, max_rounds: int, want_exit: bool, drafts: bool = True, forced: int = -1
    ) -> Report:
        """Run rounds and wait for them; see `Control`."""
        control = Control(
            np.int32(min(max_rounds, MOST_ROUNDS)),
            np.bool_(want_exit),
            np.bool_(drafts and self.plan.drafter is not None),
            np.int32(forced),
            self.drafted.copy(),
        )
        with full_precision(self.params):
            self.state, report = visit(
                self.params, self.state, self.settings.copy(), control, **self._static
            )
        return read_report(report, self.slots)

    def read_rounds(self) -> tuple[Tree, Accepted]:
        """Read the trees and the paths of the last round."""
        return jax.device_get((self.state.decode.tree, self.state.decode.accepted))

    def read_logprobs(self, asked: dict[int, tuple[int, int]]) -> dict[int, list[TokenLogprob]]:
        """Read log-probabilities of the tokens of the last visit.

        Args:
          asked: {slot: (tokens of the visit, alternatives of each)}.
        """
        options = {"config": self.config, "count": self.logprobs}
        with full_precision(self.params):
            ranked = {
                slot: rank_tokens(self.params, self.state, np.int32(slot), **options)
                for slot in asked
            }
        return {slot: read_logprobs(ranked[slot], *asked[slot]) for slot in asked}

    def compile(self) -> None:
        """Compile all programs. All slots must be free."""
        self.feed(0, [0], 0, 0)
        self.copy(0, 0)
        self.clean(0)
        self.visit(0, False)
        if self.logprobs:
            self.read_logprobs({0: (0, 0)})

    def time_rounds(self, length: int, drafts: bool, forced: int, rounds: int) -> float:
        """Time rounds of sequences of `length` tokens, in seconds per round. Slots must be free."""
        for slot in range(self.slots):
            depth = self.plan.longest - 1 if drafts else 0
            settings = {"limit": 2**30, "deepest": depth, "high": self.rules.edges[-1]}
            self.open(slot, settings, ())
        self._set_lengths(length)
        self.visit(1, False, drafts, forced)
        self._set_lengths(length)
        began = time.perf_counter()
        self.visit(rounds, False, drafts, forced)
        return (time.perf_counter() - began) / rounds

    def _set_lengths(self, length: int) -> None:
        decode = self.state.decode
        lengths = jax.device_put(np.full(self.slots, length, np.int32))
        decode = decode.replace(cache=decode.cache.replace(length=lengths))
        self.state = self.state.replace(decode=decode)

    @property
    def _static(self) -> dict[str, Any]:
        return {"config": self.config, "rules": self.rules}
