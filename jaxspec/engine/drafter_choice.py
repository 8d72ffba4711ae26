"""Choose the drafter of a call by the speeds that earlier calls of this process reached.

Every loaded drafter decodes one call first. After that the fastest one decodes, and now and then the
one that has waited longest, since another kind of prompt may suit it better.
"""

from __future__ import annotations

import dataclasses
import weakref

import jax

from jaxspec.core.params import Params

# Calls between two trials of the drafter that has waited longest.
REVISIT = 16
# Share of its evidence that a drafter keeps when it decodes again.
DECAY = 0.8


@dataclasses.dataclass
class Record:
    """What calls with a drafter reached.

    Attributes:
      tokens: emitted after the prefill; earlier calls count less.
      seconds: of the rounds that emitted them.
      last: number of the last call.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    last: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclasses.dataclass
class Trials:
    """The records of a model's drafters, by name, and the number of calls."""

    weight: weakref.ref
    calls: int = 0
    records: dict[str, Record] = dataclasses.field(default_factory=dict)


_trials: dict[tuple[int, int, bool], Trials] = {}


def choose_drafter(params: Params, batch: int, greedy: bool) -> str:
    """Choose the drafter of a call.

    Args:
      params: the model.
      batch: number of sequences.
      greedy: whether the call decodes greedily; acceptance differs.

    Returns:
      Its name; `ar` if none is loaded.
    """
    names = [name for name, _ in params.spec.drafters]
    if len(names) < 2:
        return params.spec.default_method
    trials = _find_trials(params, batch, greedy)
    trials.calls += 1
    untried = [name for name in names if name not in trials.records]
    if untried:
        return untried[0]
    records = {name: trials.records[name] for name in names}
    waiting = min(names, key=lambda name: records[name].last)
    if trials.calls - records[waiting].last > REVISIT * len(names):
        return waiting
    return max(names, key=lambda name: records[name].speed)


def record_speed(
    params: Params, name: str, batch: int, greedy: bool, tokens: int, seconds: float
) -> None:
    """Record the rounds of a call.

    Args:
      params, batch, greedy: as for `choose_drafter`.
      name: the drafter's.
      tokens: emitted by rounds, of all sequences.
      seconds: of the rounds, without compilation.
    """
    if len(params.spec.drafters) < 2 or tokens < 1:
        return
    trials = _find_trials(params, batch, greedy)
    before = trials.records.get(name, Record())
    trials.records[name] = Record(
        DECAY * before.tokens + tokens, DECAY * before.seconds + seconds, trials.calls
    )


def _find_trials(params: Params, batch: int, greedy: bool) -> Trials:
    """Return the trials of these weights; those of weights that are gone are dropped."""
    weight = jax.tree.leaves(params.drafters)[0]
    key = (id(weight), batch, greedy)
    found = _trials.get(key)
    if found is None or found.weight() is not weight:
        for old in [old for old, trials in _trials.items() if trials.weight() is None]:
            del _trials[old]
        found = _trials[key] = Trials(weakref.ref(weight))
    return found
