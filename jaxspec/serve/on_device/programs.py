"""The programs of an engine: each takes arrays of the host and changes the state of the slots.

What an engine runs passes through `Programs.run`, so other processes that get the same names and
arrays make the same calls (`jaxspec.serve.scheduling.follow`). Each program is compiled for some
`Variant`s, by its first call or by `Programs.compile` before it, which any thread may call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.call.session import full_precision
from jaxspec.call.start import pausing_collection
from jaxspec.core.params import Params
from jaxspec.round.evidence import Evidence
from jaxspec.round.plan import DecodeConfig, Plan
from jaxspec.serve.on_device.change_slot import clean_slot, copy_slot, count_slot
from jaxspec.serve.on_device.feed import feed
from jaxspec.serve.on_device.joint_plan import Config, join_plans, list_configs
from jaxspec.serve.on_device.logprobs import rank_tokens
from jaxspec.serve.on_device.slot_evidence import copy_rings
from jaxspec.serve.on_device.slot_rounds import Control, Rules
from jaxspec.serve.on_device.slot_settings import make_settings
from jaxspec.serve.on_device.slots import SlotsState, make_slots, set_lengths
from jaxspec.serve.on_device.visit import visit
from jaxspec.serve.publish import replace_drafter

# Integers of a visit's control, before the seconds of rounds.
_CHOICES = 4


class Variant(NamedTuple):
    """A compiled form of a program.

    Attributes:
      name: of `Programs.takes`.
      reader: of `feed`, `score` and `visit`: whether, and but for `visit` which, drafter reads; 0:
        none.
      part: of `visit`: neighbouring slots whose rounds it runs.
    """

    name: str
    reader: int = 0
    part: int = 0

    def describe(self, drafters: Sequence[str]) -> str:
        """Say what it is, for a log.

        Args:
          drafters: names of the engine's drafters, or `ar` alone.
        """
        names = drafters if self.name == "visit" else drafters[self.reader - 1 : self.reader]
        reads = self.reader and "ar" not in names  # without drafters, `ar` is the first reader
        drafts = f"with {', '.join(names)}" if reads else "without a drafter"
        slots = f"of {self.part} slot{'s' * (self.part > 1)} "
        return {
            "feed": f"prompts {drafts}",
            "score": f"log-probabilities of prompts {drafts}",
            "visit": f"rounds {slots}{drafts}",
            "rank": "log-probabilities",
            "evidence": "evidence",
        }.get(self.name, f"{self.name} a slot")


@dataclasses.dataclass
class Programs:
    """The programs over B slots, and their state. One thread uses it.

    Attributes:
      params: the model, as its weights lie.
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
        control = (self._words,)
        return {
            "reset": (),
            "feed": ((), (1, self.capacity), (4,)),
            "score": ((), (1, self.capacity), (4,)),
            "copy": ((2,),),
            "count": ((1, self.capacity), (2,)),
            "clean": ((),),
            "visit": ((), make_settings(self.slots).shape, control, (2,)),
            "rank": ((self.slots,),),
            "evidence": ((),),
            "set_lengths": ((self.slots,),),
        }

    def publish(self, drafter: str, weights: Any) -> None:
        """Replace a drafter's weights, see `jaxspec.serve.publish.replace_drafter`."""
        self.params = replace_drafter(self.params, drafter, weights)

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

    def compile(self, variant: Variant) -> None:
        """Compile a program, without running it: the next call of this variant finds it."""
        name, reader, part = variant
        zero, first = np.int32(0), np.zeros(2, np.int32)
        with full_precision(self.params), pausing_collection():
            if name in ("feed", "score"):
                params, state, config = self._lend(reader, self._shapes)
                given = np.zeros((1, self.capacity), np.int32), np.zeros(4, np.int32)
                count = self.logprobs if name == "score" else 0
                lowered = feed.lower(params, state, *given, config=config, count=count)
            elif name == "visit":
                params, state, config = self._lend(None if reader else 0, self._shapes)
                rules = self.rules.of_part(part, self.slots)
                arrays = self._find_control(np.zeros(self._words, np.int32), rules)
                given = make_settings(self.slots), arrays, zero
                lowered = visit.lower(params, state, *given, config=config, rules=rules, part=part)
            elif name == "rank":
                options = {"config": list_configs(self.config)[0], "count": self.logprobs}
                lowered = rank_tokens.lower(self.params, self._shapes, zero, **options)
            elif name == "evidence":
                lowered = copy_rings.lower(self._shapes.evidence, zero)
            elif name == "count":
                given = np.zeros((1, self.capacity), np.int32), first
                lowered = count_slot.lower(self._shapes.decode.counts, *given)
            else:
                program, given = {"copy": (copy_slot, first), "clean": (clean_slot, zero)}[name]
                lowered = program.lower(self.params, self._shapes, given, config=self.config)
            lowered.compile()

    def _reset(self) -> None:
        """Free all slots."""
        keep_hidden = self.logprobs > 0
        self.state = make_slots(self.params, self.config, self.slots, self.capacity, keep_hidden)
        self._shapes = jax.eval_shape(lambda state: state, self.state)

    def _feed(
        self, reader: np.ndarray, tokens: np.ndarray, where: np.ndarray, count: int = 0
    ) -> jax.Array | None:
        """Run chunks of a prompt into a slot, and return its ranked tokens."""
        params, state, config = self._lend(int(reader), self.state)
        state, ranked = feed(params, state, tokens, where, config=config, count=count)
        self._keep(state, int(reader))
        return ranked

    def _score(self, *given: np.ndarray) -> jax.Array | None:
        """Run chunks of a prompt, and rank its tokens."""
        return self._feed(*given, count=self.logprobs)

    def _copy(self, slots: np.ndarray) -> None:
        """Copy what the first slot's caches hold into the second."""
        self.state = copy_slot(self.params, self.state, slots, config=self.config)

    def _count(self, tokens: np.ndarray, where: np.ndarray) -> None:
        """Begin to count the tokens of a slot, see `jaxspec.serve.on_device.change_slot.count_slot`."""
        counts = count_slot(self.state.decode.counts, tokens, where)
        self.state = self.state.replace(decode=self.state.decode.replace(counts=counts))

    def _clean(self, slot: np.ndarray) -> None:
        """Clear a slot of values that are not finite."""
        self.state = clean_slot(self.params, self.state, slot, config=self.config)

    def _visit(
        self,
        follows: np.ndarray,
        settings: np.ndarray,
        control: np.ndarray,
        where: np.ndarray,
    ) -> jax.Array:
        """Run rounds of the slots `where` (the first, and how many), and return the report."""
        first, part = where
        rules = self.rules.of_part(int(part), self.slots)
        reader = None if follows else 0
        params, state, config = self._lend(reader, self.state)
        arrays = self._find_control(control, rules)
        state, report = visit(
            params, state, settings, arrays, first, config=config, rules=rules, part=int(part)
        )
        self._keep(state, reader)
        return report

    @property
    def _words(self) -> int:
        return _CHOICES + len(self.rules.edges)

    def _find_control(self, words: np.ndarray, rules: Rules) -> Control:
        """Read what `pack_control` packed, for rounds of these rules."""
        rounds, want_exit, drafts, forced = words[:_CHOICES]
        seconds = words[_CHOICES : _CHOICES + len(rules.edges)].view(np.float32)
        return Control(rounds, np.bool_(want_exit), np.bool_(drafts), forced, seconds)

    def _rank(self, wanted: np.ndarray) -> dict[int, jax.Array]:
        """Rank the tokens of the last visit of the slots where `wanted` is not 0."""
        options = {"config": list_configs(self.config)[0], "count": self.logprobs}
        return {
            slot: rank_tokens(self.params, self.state, np.int32(slot), **options)
            for slot in np.flatnonzero(wanted).tolist()
        }

    def _evidence(self, slot: np.ndarray) -> Evidence:
        """Copy the evidence of a slot."""
        return copy_rings(self.state.evidence, slot)

    def _set_lengths(self, lengths: np.ndarray) -> None:
        """Set how many tokens each sequence has, to time rounds."""
        self.state = set_lengths(self.state, lengths)

    def _lend(self, reader: int | None, held: SlotsState) -> tuple[Params, SlotsState, Config]:
        """Return what a program takes: no more of the drafters than it needs.

        The host needs some time for each array of a call.

        Args:
          reader: number of the only drafter that the program runs, from 1; 0: none; None: all.
          held: the state of all slots, or its shapes.
        """
        params, decode = self.params, held.decode
        configs = list_configs(self.config)
        if self.plan.drafter is None or reader is None or (reader and len(configs) == 1):
            return params, held, self.config
        if reader:
            config = configs[reader - 1]
            drafters = {config.drafter: params.drafter(config.drafter)}
            decode = decode.replace(draft=decode.draft[reader - 1])
        else:
            config, drafters = DecodeConfig("ar", configs[0].sampling), {}
            decode = decode.replace(draft=None, pending=None)
            held = held.replace(evidence=None)
        return params.replace(drafters=drafters), held.replace(decode=decode), config

    def _keep(self, state: SlotsState, reader: int | None) -> None:
        """Keep the state that a program returned, and what `_lend` did not lend to it."""
        decode, held = state.decode, self.state.decode
        if reader == 0:
            decode = decode.replace(draft=held.draft, pending=held.pending)
            state = state.replace(evidence=self.state.evidence)
        elif reader is not None and isinstance(self.config, tuple):
            drafts = (*held.draft[: reader - 1], decode.draft, *held.draft[reader:])
            decode = decode.replace(draft=drafts)
        self.state = state.replace(decode=decode)


def pack_control(control: Control, edges: int) -> np.ndarray:
    """Return what the host decides for a visit as one array, as `Programs` takes it.

    Args:
      edges: numbers of rows of an engine's rounds of all slots; parts of them have fewer.
    """
    *choices, seconds = control
    padded = np.ones(edges, np.float32)
    padded[: len(seconds)] = seconds
    return np.concatenate([np.asarray(choices, np.int32), padded.view(np.int32)])
