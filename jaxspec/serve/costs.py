"""What rounds of an engine cost: measured once, and kept for the next start."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import statistics
from pathlib import Path

import numpy as np

from jaxspec.engine.kept_costs import describe_model, find_kept
from jaxspec.serve.device import Device
from jaxspec.serve.drafters import list_configs

# Rounds of a measurement, and measurements of each cost, whose median counts.
_ROUNDS, _REPEATS = 3, 3
# Visits without rounds, whose median counts.
_EMPTY = 9


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a round of each number of rows.

    Attributes:
      drafted: of rounds that draft; of several drafters, of rounds in which as many as fit draft.
      plain: of autoregressive rounds, up to the number of slots, see `Rules.plain_edges`.
      visit: of a visit without rounds.
    """

    drafted: tuple[float, ...]
    plain: tuple[float, ...]
    visit: float = 0.0


def find_costs(device: Device) -> Costs:
    """Read the costs that an engine of these sizes had on this device, or measure and keep them.

    The engine must have a drafter, and all slots must be free.
    """
    path = _find_path(device)
    kept = _read(path, device)
    if kept is not None:
        return kept
    costs = measure_costs(device)
    # A cache that cannot be written costs a measurement per process, and nothing else.
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(dataclasses.asdict(costs)))
    return costs


def measure_costs(device: Device) -> Costs:
    """Time rounds of every number of rows, at a quarter of the capacity. All slots must be free."""
    length = device.capacity // 4
    rows = {False: device.rules.plain_edges(device.slots), True: device.rules.edges}
    times: dict[tuple[bool, int], list[float]] = {}
    visit = statistics.median(device.time_visit() for _ in range(_EMPTY))
    for _ in range(_REPEATS):  # interleaved, so that a busy moment does not hit one cost alone
        for drafts in rows:
            for edge in range(len(rows[drafts])):
                seconds = device.time_rounds(length, drafts, edge, _ROUNDS)
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


def _find_path(device: Device) -> Path:
    methods = [config.method for config in list_configs(device.config)]
    described = (describe_model(device.params, method) for method in methods)
    model = (*itertools.chain(*described), str(device.params.dtype))
    sizes = device.slots, device.capacity, device.rules
    target = device.params.spec.target
    return find_kept("+".join(methods), "serve", target, model, device.config, sizes)


def _read(path: Path, device: Device) -> Costs | None:
    """Read a file of costs; None if it is missing or not of this form."""
    try:
        found = json.loads(path.read_text())
        drafted, plain = (tuple(map(float, found[name])) for name in ("drafted", "plain"))
        costs = Costs(drafted, plain, float(found["visit"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sizes = len(device.rules.edges), len(device.rules.plain_edges(device.slots))
    fits = (len(drafted), len(plain)) == sizes
    return costs if fits and all(x > 0 for x in (*drafted, *plain, costs.visit)) else None
