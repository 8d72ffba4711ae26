"""The engine's side of the device: the settings of the slots, and calls of the programs."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from jaxspec.core.state import Accepted, Tree
from jaxspec.round.evidence import Evidence
from jaxspec.serve.on_device.joint_plan import list_configs
from jaxspec.serve.on_device.logprobs import read_logprobs
from jaxspec.serve.on_device.programs import Programs, Variant, pack_control
from jaxspec.serve.on_device.slot_rounds import Control, Rules
from jaxspec.serve.on_device.slot_settings import make_settings, set_column, write_settings
from jaxspec.serve.on_device.slots import MOST_ROUNDS
from jaxspec.serve.on_device.visit import Report, read_report
from jaxspec.serve.requests import TokenLogprob
from jaxspec.serve.scheduling.follow import Followers


@dataclasses.dataclass
class Device(Programs):
    """B slots on the device. One thread uses it.

    Attributes:
      followers: the other processes that share the target; None if there are none.
      settings: int32 [B, columns], see `jaxspec.serve.on_device.slot_settings`.
      parts: numbers of neighbouring slots that a visit can be of, rising; the last is B. Rounds of
        fewer slots draft for fewer.
      drafted: by part, seconds of a drafted round of each number of rows, as far as they are known.
    """

    followers: Followers | None = None
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = make_settings(self.slots)
        self.parts = self.parts or (self.slots,)
        self.drafted = {
            part: np.ones(len(self.rules_of(part).edges), np.float32) for part in self.parts
        }

    def rules_of(self, part: int) -> Rules:
        """Return the rules of rounds of so many slots."""
        return self.rules.of_part(part, self.slots)

    @property
    def drafters(self) -> list[str]:
        """The names of the drafters, or `ar` alone."""
        return [config.drafter for config in list_configs(self.config)]

    @property
    def waiting(self) -> int:
        """How many tokens of a slot may wait until its drafter reads them."""
        pending = self.state.decode.pending
        return 0 if pending is None else pending.token.shape[1]

    def reset(self) -> None:
        """Free all slots."""
        self._call("reset")
        self.settings = make_settings(self.slots)

    def feed(
        self,
        slot: int,
        prompt: list[int],
        start: int,
        end: int,
        reader: int = 1,
        alternatives: int | None = None,
    ) -> list[TokenLogprob]:
        """Run `prompt[start:end]` into a slot; `start` is a multiple of the chunk.

        The slot's next root is the prompt's last token.

        Args:
          reader: number of the drafter that reads it too, from 1; 0: none.
          alternatives: of each token, to wait for and return with its log-probability; None: wait
            for nothing.

        Returns:
          Log-probabilities of `prompt[start + 1:end + 1]`, if they are asked for.
        """
        where = np.asarray([slot, start, end, prompt[-1]], np.int32)
        name = "feed" if alternatives is None else "score"
        ranked = self._call(name, np.asarray(reader, np.int32), self._pad(prompt), where)
        return (
            [] if alternatives is None else read_logprobs(ranked, slice(start, end), alternatives)
        )

    def copy(self, source: int, target: int) -> None:
        """Copy what a slot's caches hold into another slot, which is then fed."""
        self._call("copy", np.asarray([source, target], np.int32))

    def count(self, slot: int, prompt: list[int]) -> None:
        """Count a prompt's tokens, and then those that its slot generates, for penalties."""
        self._call("count", self._pad(prompt), np.asarray([slot, len(prompt)], np.int32))

    def clean(self, slot: int) -> None:
        """Clear a slot of values that are not finite."""
        self._call("clean", np.asarray(slot, np.int32))

    def open(self, slot: int, settings: dict[str, Any], stop: tuple[int, ...]) -> None:
        """Let a slot decode from the next visit on."""
        write_settings(self.settings, slot, active=1, stop=stop, **settings)

    def limit(self, slot: int, limit: int, stop_from: int) -> None:
        """Set how many tokens a slot may still generate, and before how many no stop id counts."""
        set_column(self.settings, slot, "limit", limit)
        set_column(self.settings, slot, "stop_from", stop_from)

    def let_go(self, slot: int) -> None:
        """Let a slot decode on without a drafter."""
        set_column(self.settings, slot, "reader", 0)

    def close(self, slot: int) -> None:
        """Free a slot."""
        write_settings(self.settings, slot, stop=())

    def visit(
        self,
        max_rounds: int,
        want_exit: bool,
        drafts: bool = True,
        forced: int = -1,
        follows: bool = True,
        first: int = 0,
        part: int | None = None,
    ) -> Report:
        """Run rounds and wait for them; see `Control`.

        Args:
          follows: whether a drafter reads any slot; one must for rounds that draft.
          first, part: the first slot, a multiple of `part`, and how many; None: all.
        """
        drafts, part = drafts and self.plan.drafter is not None, part or self.slots
        seconds = self.drafted[part]
        control = Control(min(max_rounds, MOST_ROUNDS), want_exit, drafts, forced, seconds)
        packed = pack_control(control, len(self.rules.edges))
        where = np.asarray([first, part], np.int32)
        chosen = np.asarray(follows, np.int32), self.settings.copy(), packed, where
        report = self._call("visit", *chosen)
        gathers = bool(follows) and self.state.evidence is not None
        return read_report(report, self.slots, first, part, gathers)

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        jax.block_until_ready(self.state.decode.root)

    def read_rounds(self) -> tuple[Tree, Accepted]:
        """Read the trees and the paths of the last round."""
        return jax.device_get((self.state.decode.tree, self.state.decode.accepted))

    def read_logprobs(
        self, asked: dict[int, tuple[int, int | None]]
    ) -> dict[int, list[TokenLogprob]]:
        """Read log-probabilities of the tokens of the last visit.

        Args:
          asked: {slot: (tokens of the visit, alternatives of each, or None to read nothing)}.
        """
        read = {slot: (made, count) for slot, (made, count) in asked.items() if count is not None}
        if not read:
            return {}
        wanted = np.zeros(self.slots, np.int32)
        wanted[list(read)] = 1
        ranked = self._call("rank", wanted)
        return {
            slot: read_logprobs(ranked[slot], slice(made), count)
            for slot, (made, count) in read.items()
        }

    def take_evidence(self, slot: int) -> Evidence:
        """Copy the evidence of a slot, as the last visit left it."""
        return self._call("evidence", np.asarray(slot, np.int32))

    def run_variant(self, variant: Variant) -> None:
        """Call a program so that nothing changes, which compiles it. All slots must be free."""
        name, reader, part = variant
        if name in ("feed", "score"):
            self.feed(0, [0], 0, 0, reader, alternatives=0 if name == "score" else None)
        elif name == "visit":
            self.visit(0, False, follows=bool(reader), part=part)
        elif name == "rank":
            self.read_logprobs({0: (0, 0)})
        elif name == "evidence":
            self.take_evidence(0)
        elif name == "copy":
            self.copy(0, 0)
        elif name == "count":
            self.count(0, [0])
        else:
            self.clean(0)

    def time_rounds(
        self, length: int, drafts: bool, forced: int, rounds: int, part: int | None = None
    ) -> float:
        """Time rounds of sequences of `length` tokens, in seconds per round. Slots must be free.

        Several drafters take turns at the slots, so that all draft if there are as many slots.

        Args:
          part: slots that decode, from the first on; None: all.
        """
        part, drafters = part or self.slots, len(list_configs(self.config))
        for slot in range(part):
            depth = self.plan.longest - 1 if drafts else 0
            settings = {"limit": 2**30, "deepest": depth, "high": self.rules.edges[-1]}
            self.open(slot, settings | {"reader": 1 + slot % drafters if drafts else 0}, ())
        lengths = np.full(self.slots, length, np.int32)
        self._call("set_lengths", lengths)
        self.visit(1, False, drafts, forced, follows=drafts, part=part)
        self._call("set_lengths", lengths)
        began = time.perf_counter()
        self.visit(rounds, False, drafts, forced, follows=drafts, part=part)
        took = time.perf_counter() - began
        for slot in range(part):
            self.close(slot)
        return took / rounds

    def time_visit(self, part: int | None = None) -> float:
        """Time a visit without rounds, in seconds."""
        began = time.perf_counter()
        self.visit(0, False, follows=self.plan.drafter is not None, part=part)
        return time.perf_counter() - began

    def check_process(self) -> None:
        """Refuse to work in a process that follows."""
        if jax.process_index():
            raise RuntimeError("only process 0 takes requests: call Engine.follow in the others")

    def rest(self) -> None:
        """Tell the followers that there was nothing to run."""
        if self.followers is not None:
            self.followers.rest()

    def end(self) -> None:
        """Let the followers end; nothing may be called afterwards."""
        if self.followers is not None:
            self.followers.stop()

    def _pad(self, prompt: list[int]) -> np.ndarray:
        """Return the prompt as programs take it, int32 [1, S]."""
        tokens = np.zeros((1, self.capacity), np.int32)
        tokens[0, : len(prompt)] = prompt
        return tokens

    def _call(self, name: str, *arrays: np.ndarray) -> Any:
        """Run a program here and in the processes that follow."""
        self.check_process()
        if self.followers is not None:
            self.followers.tell(name, arrays)
        return self.run(name, *arrays)
