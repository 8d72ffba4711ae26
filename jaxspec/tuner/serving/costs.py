"""What rounds of an engine cost: measured once, and kept for the next start."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxspec.core.params import Params
from jaxspec.tuner.store import Store, describe_model

# Rounds of a measurement, and measurements of each cost, whose median counts.
_ROUNDS, _REPEATS = 3, 3
# Visits without rounds, whose median counts.
_EMPTY = 9


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a round of each number of rows.

    Attributes:
      drafted: of rounds that draft; of several drafters, of rounds in which as many as fit draft.
      plain: of autoregressive rounds, up to the number of slots, see `RowRules.plain_edges`.
      visit: of a visit without rounds.
    """

    drafted: tuple[float, ...]
    plain: tuple[float, ...]
    visit: float = 0.0


class RowRules(Protocol):
    """The numbers of rows of an engine's rounds, see `jaxspec.serve.on_device.slot_rounds.Rules`."""

    @property
    def edges(self) -> tuple[int, ...]:
        """Numbers of rows of rounds that draft."""

    def plain_edges(self, part: int) -> tuple[int, ...]:
        """Return the numbers of rows of autoregressive rounds of so many slots."""


class TimedDevice(Protocol):
    """What is timed of an engine, see `jaxspec.serve.scheduling.device.Device`."""

    params: Params
    config: Any
    rules: Any
    slots: int
    capacity: int
    parts: tuple[int, ...]

    @property
    def drafters(self) -> Sequence[str]:
        """Names of the engine's drafters."""

    def rules_of(self, part: int) -> RowRules:
        """Return the rules of rounds of so many slots."""

    def time_rounds(
        self, length: int, drafts: bool, forced: int, rounds: int, part: int | None = None
    ) -> float:
        """Time rounds of sequences of `length` tokens, in seconds per round."""

    def time_visit(self, part: int | None = None) -> float:
        """Time a visit without rounds, in seconds."""

    def reset(self) -> None:
        """Free all slots."""


def find_costs(device: TimedDevice, store: Store, steady: bool = False) -> Costs:
    """Read what rounds of an engine's smallest part cost on this device, or measure and keep it.

    The engine must have a drafter, and all slots must be free.

    Args:
      steady: of several processes that measured, the costs of the first to write count.
    """
    kept = read_costs(device, store)
    if kept is not None:
        return kept
    costs = measure_costs(device)
    path, text = _find_path(device, store), json.dumps(dataclasses.asdict(costs))
    if not steady or path.exists():  # a file that is there is damaged, or of another form
        store.write(path, text)
        return costs
    store.write_first(path, text)
    return read_costs(device, store) or costs


def measure_costs(device: TimedDevice) -> Costs:
    """Time rounds of every number of rows, of the smallest part, at a quarter of the capacity.

    All slots must be free.
    """
    length, part = device.capacity // 4, device.parts[0]
    rules = device.rules_of(part)
    rows = {False: rules.plain_edges(part), True: rules.edges}
    times: dict[tuple[bool, int], list[float]] = {}
    visit = statistics.median(device.time_visit(part) for _ in range(_EMPTY))
    for _ in range(_REPEATS):  # interleaved, so that a busy moment does not hit one cost alone
        for drafts in rows:
            for edge in range(len(rows[drafts])):
                seconds = device.time_rounds(length, drafts, edge, _ROUNDS, part)
                alone = max(seconds - visit / _ROUNDS, seconds / 10)
                times.setdefault((drafts, edge), []).append(alone)
    device.reset()
    median = {key: statistics.median(found) for key, found in times.items()}
    # More rows never take less time; what a measurement says otherwise is noise.
    drafted, plain = (
        np.maximum.accumulate([median[drafts, edge] for edge in range(len(rows[drafts]))])
        for drafts in (True, False)
    )
    return Costs(tuple(drafted.tolist()), tuple(plain.tolist()), visit)


def _find_path(device: TimedDevice, store: Store) -> Path:
    drafters = device.drafters
    described = (describe_model(device.params, name) for name in drafters)
    model = (*itertools.chain(*described), str(device.params.dtype))
    sizes = device.slots, device.capacity, device.rules, device.parts[0]
    target = device.params.spec.target
    return store.find("+".join(drafters), "serve", target, model, device.config, sizes)


def guess_costs(known: Costs, rows: tuple[int, ...], part: int, rules: RowRules) -> Costs:
    """Guess what rounds of `part` slots cost from those of one slot.

    A round drafts for every slot of its part, and verifies its rows.

    Args:
      known: of rounds of one slot.
      rows: numbers of rows of its drafted rounds.
      rules: of rounds of the part.
    """
    plain, drafted = known.plain[-1], known.drafted
    if len(rows) > 1:
        row = (drafted[-1] - drafted[0]) / (rows[-1] - rows[0])
    else:  # half of what a drafted round takes more
        row = (drafted[0] - plain) / (2 * max(rows[0] - 1, 1))
    row = max(row, 0.0)
    draft = max(drafted[0] - plain - row * (rows[0] - 1), 0.0)
    verify = [plain + row * (edge - 1) for edge in (*rules.edges, *rules.plain_edges(part))]
    count = len(rules.edges)
    return Costs(
        tuple(part * draft + each for each in verify[:count]), tuple(verify[count:]), known.visit
    )


def read_costs(device: TimedDevice, store: Store) -> Costs | None:
    """Read what was kept of an engine of these sizes; None if it is missing or not of this form."""
    rules = device.rules_of(device.parts[0])
    try:
        found = json.loads(_find_path(device, store).read_text())
        drafted, plain = (tuple(map(float, found[name])) for name in ("drafted", "plain"))
        costs = Costs(drafted, plain, float(found["visit"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sizes = len(rules.edges), len(rules.plain_edges(device.parts[0]))
    fits = (len(drafted), len(plain)) == sizes
    return costs if fits and all(x > 0 for x in (*drafted, *plain, costs.visit)) else None
