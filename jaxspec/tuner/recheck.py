"""Check the automatic policy's costs in running decodes.

A decode shows what the kinds of rounds cost that the policy chose. A wrong cost of another kind may
be why it was not chosen, and would stay wrong. So now and then a decode begins with a few rounds of
another kind and as many of the usual one, and the ratio of their times corrects the other's cost.
These rounds commit tokens like all others.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from jaxspec.call.session import Session
from jaxspec.core.state import DecodeState
from jaxspec.costs.row_costs import RowCosts, width_indices
from jaxspec.tuner.timed_rounds import PLAIN, TimeCompilation, count_rounds, time_rounds

# Rounds until the first check; the interval doubles up to the longest.
FIRST, LONGEST = 48, 1024
# Weight of a check, and the most that it may change a logarithm of a cost by.
WEIGHT, LIMIT = 0.5, 0.5


@dataclasses.dataclass
class NextCheck:
    """When a setting's costs are checked next.

    Attributes:
      rounds: that the policy had counted at the last check.
      sizes: int [N + 1], its rounds by verified rows until then; see `ControllerState`.
      interval: rounds until the next check.
      turn: number of checks so far.
    """

    rounds: int
    sizes: np.ndarray
    interval: int
    turn: int


class Rechecks:
    """When the costs of settings are checked next."""

    def __init__(self) -> None:
        self._next: dict[str, NextCheck] = {}

    def check_if_due(
        self, setting: str, session: Session, state: DecodeState, compiles: TimeCompilation
    ) -> tuple[Session, DecodeState]:
        """Check a cost if that is due, with rounds of this decode.

        Args:
          setting: names what the session's costs depend on.
          session: its policy is the automatic one.
          state: is donated if a check runs.
          compiles: see `jaxspec.tuner.timed_rounds.time_rounds`.

        Returns:
          The session with the corrected costs, and the next state.
        """
        assert session.policy is not None, "only a policy's costs are checked"
        counted = session.policy.state
        rounds, sizes = int(counted.rounds), np.asarray(counted.sizes)
        due = self._next.get(setting)
        if due is None or rounds < due.rounds:  # new here, or the policy began anew
            due = self._next[setting] = NextCheck(rounds, 0 * sizes, FIRST, 0)
        if rounds - due.rounds < due.interval:
            return session, state
        usual, other = choose_kinds(
            sizes - due.sizes, session.policy.controls.costs.widths, due.turn
        )
        interval = min(2 * due.interval, LONGEST)
        self._next[setting] = NextCheck(rounds, sizes, interval, due.turn + 1)
        return _check(session, state, usual, other, compiles)


def choose_kinds(sizes: np.ndarray, widths: tuple[int, ...], turn: int) -> tuple[int, int]:
    """Choose the usual kind of round, and the one to compare with it.

    Every other check is of autoregressive rounds, unless they are the usual ones. A round that
    drafts and verifies one row is never worth its time.

    Args:
      sizes: int [N + 1], rounds by verified rows; entry 0 counts rounds that did not draft.
      widths: compiled rows, ascending from 1.
      turn: number of checks so far.
    """
    counts = np.zeros(len(widths))
    np.add.at(counts, width_indices(len(sizes) - 1, widths), sizes[1:])
    counts[0] = sizes[0]
    kinds = (PLAIN, *widths[1:])
    usual = kinds[int(np.argmax(counts))]
    others = [kind for kind in kinds[1:] if kind != usual]
    if usual == PLAIN or not others:
        return usual, others[turn % len(others)] if others else PLAIN
    return usual, PLAIN if turn % 2 == 0 else others[turn // 2 % len(others)]


def correct_ratio(costs: RowCosts, usual: int, other: int, ratio: float) -> RowCosts:
    """Move the cost of one kind of round towards a measured ratio.

    Args:
      usual, other: kinds, PLAIN or a compiled width.
      ratio: seconds of a round of `other` over those of `usual`.
    """
    whole = costs.rounds()

    def place(kind: int) -> int:
        return 0 if kind == PLAIN else 1 + costs.widths.index(kind)

    known = whole[place(other)].mean() / whole[place(usual)].mean()
    error = np.clip(WEIGHT * np.log(ratio / known), -LIMIT, LIMIT)
    whole[place(other)] *= np.exp(error)
    return costs.with_rounds(whole)


def _check(
    session: Session, state: DecodeState, usual: int, other: int, compiles: TimeCompilation
) -> tuple[Session, DecodeState]:
    """Time rounds of two kinds; correct nothing if the text ended meanwhile."""
    policy = session.policy
    assert policy is not None, "only a policy's costs are checked"
    costs = policy.controls.costs
    count = count_rounds(float(np.asarray(costs.verify)[0].mean()))
    # The decision to draft must not rest on rounds that were forced.
    pauses = jax.device_get(state.control.pauses)
    state, empty, _ = time_rounds(session, session.request, state, PLAIN, 0, compiles)
    seconds, complete = {}, True
    for kind in (other, usual):
        state, took, rounds = time_rounds(session, session.request, state, kind, count, compiles)
        seconds[kind] = max(took - empty, 0.1 * took)
        complete &= rounds == count
    state = state.replace(control=state.control.replace(pauses=pauses))
    if not complete:
        return session, state
    costs = correct_ratio(costs, usual, other, seconds[other] / seconds[usual])
    policy = policy.replace(controls=policy.controls.replace(costs=costs))
    request = session.request.replace(controls=policy.controls)
    return dataclasses.replace(session, policy=policy, request=request), state
