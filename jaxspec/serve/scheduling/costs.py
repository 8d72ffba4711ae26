"""What rounds of an engine cost: measured once, and kept for the next start."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from pathlib import Path

import numpy as np

from jaxspec.call.kept_costs import describe_model, find_kept
from jaxspec.io.user_cache import keep
from jaxspec.serve.on_device.joint_plan import list_configs
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.serve.scheduling.device import Device

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
    """Read what rounds of an engine's smallest part cost on this device, or measure and keep it.

    The engine must have a drafter, and all slots must be free.
    """
    kept = read_costs(device)
    if kept is not None:
        return kept
    costs = measure_costs(device)
    keep(_find_path(device), json.dumps(dataclasses.asdict(costs)))
    return costs


def measure_costs(device: Device) -> Costs:
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


def _find_path(device: Device) -> Path:
    drafters = [config.drafter for config in list_configs(device.config)]
    described = (describe_model(device.params, one) for one in drafters)
    model = (*itertools.chain(*described), str(device.params.dtype))
    sizes = device.slots, device.capacity, device.rules, device.parts[0]
    target = device.params.spec.target
    return find_kept("+".join(drafters), "serve", target, model, device.config, sizes)


def guess_costs(known: Costs, rows: tuple[int, ...], part: int, rules: Rules) -> Costs:
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


def read_costs(device: Device) -> Costs | None:
    """Read what was kept of an engine of these sizes; None if it is missing or not of this form."""
    rules = device.rules_of(device.parts[0])
    try:
        found = json.loads(_find_path(device).read_text())
        drafted, plain = (tuple(map(float, found[name])) for name in ("drafted", "plain"))
        costs = Costs(drafted, plain, float(found["visit"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sizes = len(rules.edges), len(rules.plain_edges(device.parts[0]))
    fits = (len(drafted), len(plain)) == sizes
    return costs if fits and all(x > 0 for x in (*drafted, *plain, costs.visit)) else None
