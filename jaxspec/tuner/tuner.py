"""`Tuner`: makes the choices that a call leaves open, and learns from calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp

from jaxspec.call.hooks import UNTUNED, Hooks
from jaxspec.call.output import Output
from jaxspec.call.session import Session, choose, matmul_precision
from jaxspec.call.start import find_key, start_session
from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import suits_lookup
from jaxspec.tuner.automatic import AutomaticPolicies, is_probed
from jaxspec.tuner.drafter_choice import DrafterTrials
from jaxspec.tuner.probe import measure_costs
from jaxspec.tuner.recheck import Rechecks
from jaxspec.tuner.shrink_choice import ShrinkPrices
from jaxspec.tuner.store import Store
from jaxspec.tuner.weight_layouts import WeightLayouts


class Tuner(Hooks):
    """Times, remembers and chooses what callers leave open: how much to draft, and with what.

    A call is *steady* if no clock may decide anything in it: in other dtypes than float32, where
    the rows of a round change roundings, and with a frozen tuner. All choices of a steady call
    follow from its prompts, seed, model and a table of costs that no call changes once it is
    written.

    Attributes:
      store: its files, see `jaxspec.tuner.store`.
      drafters: the speeds of drafters.
    """

    def __init__(self, folder: str | os.PathLike | None = None, *, frozen: bool = False):
        """Make one that has learned nothing.

        Args:
          folder: where its tables are kept (None: the user's cache folder, for all processes).
          frozen: never time, write or learn. Where a table is missing, every round drafts, and
            verifies as many rows as suit the device.
        """
        self.store = Store(folder, frozen)
        self.drafters = DrafterTrials()
        self._policies = AutomaticPolicies(self.store)
        self._layouts = WeightLayouts(self.store)
        self._rechecks, self._shrinking = Rechecks(), ShrinkPrices()
        self._paces: dict[Hashable, float] = {}  # seconds of a round of calls of a kind

    @property
    def frozen(self) -> bool:
        """Whether it only reads."""
        return self.store.frozen

    def freeze(self) -> None:
        """Never time, write or learn from now on."""
        self.store.frozen = True

    def is_steady(self, params: Params) -> bool:
        """Whether no clock may decide anything in calls of a model."""
        return self.frozen or params.dtype != jnp.float32

    def prepare(self, session: Session) -> Session:
        """Make the choices that a session leaves open: drafter, lookup, weights' layout and policy.

        Args:
          session: from `jaxspec.call.session.prepare`. Of one that leaves nothing open, only the
            layout of the weights is chosen.
        """
        params, config, batch = session.params, session.config, len(session.lengths)
        steady, open = self.is_steady(params), session.open
        if open and open.drafter:
            name = self.drafters.choose(params, batch, config.sampling.greedy, steady=steady)
            if name != config.drafter:
                config = session.resolve(name)
        if open and open.lookup and params.layout is None:
            lookup = suits_lookup(params.spec, config.drafter)
            config = dataclasses.replace(config, lookup=lookup)
        params = self.lay_out(params, config.drafter, batch)
        if not open:
            return choose(session, params, config, session.policy)
        budget = None if open.budget else config.budget
        policy, config, path = self._policies.recall(params, config, budget, batch, steady)
        return dataclasses.replace(choose(session, params, config, policy), costs_file=path)

    def lay_out(self, params: Params, drafters: str | Sequence[str], batch: int) -> Params:
        """Lay a model's weights out as is fastest, see `WeightLayouts.add_copies`."""
        return self._layouts.add_copies(params, drafters, batch)

    def calibrate(self, session: Session) -> RoundCosts:
        """Measure the costs of a session's rounds anew, in place of what is known.

        Args:
          session: see `prepare`; it leaves its policy open.

        Raises:
          ValueError: the tuner is frozen, or the session leaves nothing to choose.
        """
        session = self.prepare(session)
        path = session.costs_file
        if self.frozen or path is None:
            raise ValueError("nothing is measured for this call: leave its budget and policy open")
        with matmul_precision(session):
            state = start_session(session, self).state
            costs = measure_costs(session, state, self.timing_compilation)
        self._policies.keep(path, costs, self.is_steady(session.params), anew=True)
        return costs

    def after_prefill(self, session: Session, state: DecodeState) -> Session:
        """Measure the round costs of a session, and keep them, if they are not known."""
        policy, path = session.policy, session.costs_file
        if path is None or policy is None or is_probed(policy) or self.frozen:
            return session
        costs = measure_costs(session, state, self.timing_compilation)
        found = self._policies.keep(path, costs, self.is_steady(session.params))
        return _use_controls(session, found)

    def before_rounds(self, session: Session, state: DecodeState) -> tuple[Session, DecodeState]:
        """Check a cost if that is due, with rounds of this call; see `jaxspec.tuner.recheck`."""
        path = session.costs_file
        if path is None or self.is_steady(session.params):
            return session, state
        return self._rechecks.check_if_due(str(path), session, state, self.timing_compilation)

    def may_shrink(self, session: Session) -> bool:
        """Whether calls like this one shrink without being asked.

        A short dtype rounds differently in another batch, and tokens must not depend on the clock.
        Nor may processes decide by clocks of their own.
        """
        return not self.is_steady(session.params) and jax.process_count() == 1

    def shrinking_pays(self, session: Session, batch: int, seconds: float) -> bool:
        """Decide whether a session goes on with a smaller batch, see `ShrinkPrices.pays`."""
        return self._shrinking.pays(session, batch, seconds)

    def after_shrinking(self, session: Session, state: DecodeState) -> Session:
        """Give the automatic policy the round costs of a batch of this size.

        Args:
          state: of the same sequences; rounds on copies of it are timed if the costs are not known.
        """
        if session.costs_file is None:
            return session
        fixed = dataclasses.replace(session.config, policy=None)
        found, config, path = self._policies.recall(
            session.params,
            fixed,
            session.config.budget,
            len(session.lengths),
            self.is_steady(session.params),
        )
        if found is None or config != session.config:  # other programs than those of the state
            return session
        session = dataclasses.replace(_use_controls(session, found), costs_file=path)
        return self.after_prefill(session, state)

    def timing_compilation(self, session: Session) -> contextlib.AbstractContextManager[None]:
        """Note what compiling the rounds of a session takes."""
        if self.frozen:
            return UNTUNED.timing_compilation(session)
        return self._shrinking.timing_compilation(session)

    def recall_pace(self, session: Session) -> float | None:
        """Return the seconds of a round of the last such call."""
        return self._paces.get(find_key(session))

    def note_pace(self, session: Session, seconds: float) -> None:
        """Note the seconds of a round, by which later calls choose how often the host looks."""
        if not self.frozen:
            self._paces[find_key(session)] = seconds

    def observe(self, session: Session, outputs: Sequence[Output], rounds_only: bool) -> None:
        """Let later calls of this process go on with what a call learned, unless it is steady."""
        policy, path, name = outputs[0].policy, session.costs_file, session.config.drafter
        if path is None or policy is None or self.is_steady(session.params):
            return
        self._policies.remember(path, session.params, name, policy)
        if rounds_only:
            tokens = sum(out.stats.emitted - 1 for out in outputs)
            greedy, seconds = session.config.sampling.greedy, outputs[0].stats.decode_seconds
            self.drafters.record(session.params, name, len(outputs), greedy, tokens, seconds)


def _use_controls(session: Session, policy: Policy) -> Session:
    """Return the session with the controls of a policy, and its own state of the policy."""
    assert session.policy is not None, "it is one with a policy"
    policy = session.policy.replace(controls=policy.controls)
    request = session.request.replace(controls=policy.controls)
    return dataclasses.replace(session, policy=policy, request=request)


_process: Tuner | None = None


def process_tuner() -> Tuner:
    """Return the tuner of this process: that of calls without one of their own."""
    global _process
    if _process is None:
        _process = Tuner()
    return _process


def tune(session: Session, tuner: Tuner | None = None) -> tuple[Session, Hooks]:
    """Make the choices that a session leaves open; return it with the hooks to run it with.

    Args:
      tuner: who chooses. None: the process's own tuner if the session leaves something open;
        otherwise nobody does.

    Raises:
      TypeError: it is no tuner.
    """
    if tuner is None:
        if session.open is None:
            return session, UNTUNED
        tuner = process_tuner()
    if not isinstance(tuner, Tuner):
        raise TypeError(f"tuner is of type {type(tuner).__name__}: give jaxspec.Tuner()")
    return tuner.prepare(session), tuner
