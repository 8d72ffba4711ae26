"""Choose the drafter of a call by the speeds that earlier calls of this process reached.

The first drafter decodes the first call, and the fastest one so far the later ones. Now and then
the one that has waited longest decodes: it may be faster, or suit the present prompts better.
Trials are seldom, because the first call of a drafter compiles its program.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence

from jaxspec.core.params import Params
from jaxspec.targets.layouts.registry import some_weight

# Every so many calls, the drafter that has waited longest decodes.
REVISIT = 16
# Share of a drafter's evidence that counts one call later.
DECAY = 0.8


@dataclasses.dataclass
class Reached:
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
    """What calls of a model reached with its drafters, by name, and the number of calls."""

    weight: weakref.ref
    calls: int = 0
    reached: dict[str, Reached] = dataclasses.field(default_factory=dict)


class DrafterTrials:
    """The trials of all models, by their weights, batch sizes and ways to sample."""

    def __init__(self) -> None:
        self._trials: dict[tuple[int, int, bool], Trials] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def choose(
        self,
        params: Params,
        batch: int,
        greedy: bool,
        names: Sequence[str] | None = None,
        steady: bool = False,
    ) -> str:
        """Choose the drafter of a call.

        Args:
          params: the model.
          batch: number of sequences.
          greedy: whether the call decodes greedily; acceptance differs.
          names: drafters to choose from (None: all that are loaded).
          steady: take the first one, whatever their speeds.

        Returns:
          Its name; `ar` if none is loaded.
        """
        names = [name for name, _ in params.spec.drafters] if names is None else names
        if len(names) < 2 or steady:
            return names[0] if names else params.spec.default_drafter
        trials = self._find(params, batch, greedy)
        trials.calls += 1
        reached = trials.reached
        if trials.calls % REVISIT == 0:
            return min(names, key=lambda name: reached[name].last if name in reached else 0)
        tried = [name for name in names if name in reached]
        return max(tried, key=lambda name: reached[name].speed) if tried else names[0]

    def record(
        self, params: Params, name: str, batch: int, greedy: bool, tokens: int, seconds: float
    ) -> None:
        """Record the rounds of a call.

        Args:
          params, batch, greedy: as for `choose`.
          name: the drafter's.
          tokens: emitted by rounds, of all sequences.
          seconds: of the rounds, without compilation.
        """
        if len(params.spec.drafters) < 2 or tokens < 1:
            return
        trials = self._find(params, batch, greedy)
        before = trials.reached.get(name, Reached())
        kept = DECAY ** (trials.calls - before.last)
        trials.reached[name] = Reached(
            kept * before.tokens + tokens, kept * before.seconds + seconds, trials.calls
        )

    def _find(self, params: Params, batch: int, greedy: bool) -> Trials:
        """Return the trials of these weights; those of weights that are gone are dropped."""
        weight = some_weight(*params.drafters.values())
        key = (id(weight), batch, greedy)
        found = self._trials.get(key)
        if found is None or found.weight() is not weight:
            for old in [old for old, trials in self._trials.items() if trials.weight() is None]:
                del self._trials[old]
            found = self._trials[key] = Trials(weakref.ref(weight))
        return found
