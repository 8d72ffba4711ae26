"""Choose the sizes of an engine, and check those that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jaxspec.call.arguments import check_count
from jaxspec.call.options import Speculation
from jaxspec.call.resolve import BUDGET, resolve_config
from jaxspec.core.params import Params, Spec
from jaxspec.core.sampling.settings import MIXED
from jaxspec.round.plan import QUEUE, make_plan, suits_lookup
from jaxspec.round.sizes import prompt_chunk, round_up
from jaxspec.serve.checks import DraftLimits
from jaxspec.serve.on_device.joint_plan import Config, join_plans, list_configs
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.tuner.serving.costs import Costs
from pallas_kernels.device import current_device

# Most rows that a round verifies, however many slots there are.
_MOST_ROWS = 512
# Most rows of a slot on a CPU, unless the caller says otherwise.
CPU_BUDGET = 8


def choose_config(
    spec: Spec,
    drafter: str | Sequence[str] | None,
    *,
    lookup: bool | str | None,
    budget: int | None,
    chooses: bool,
    learns: tuple[str, int] | None = None,
    **options: Any,
) -> Config:
    """Check the options of drafting, and return the config of the drafter, or of each of several.

    Args:
      budget: None: the default one.
      chooses: whether the engine chooses what is not given, as `jaxspec.decode` does.
      learns: a drafter that learns, and the rows of its evidence, see `DecodeConfig.evidence`.

    Raises:
      ValueError: an option is invalid, or the drafter that learns is not among the engine's.
    """
    names = tuple(drafter) if isinstance(drafter, list | tuple) else (drafter,)
    if not names or len(set(names)) < len(names) or ("ar" in names and len(names) > 1):
        raise ValueError(
            f"drafter is {drafter!r}: give one name, or those of several drafters, each once; every "
            "request may ask for 'ar'"
        )
    if budget is None:
        budget = CPU_BUDGET if current_device().platform == "cpu" else BUDGET
    given = Speculation(lookup=lookup or False, budget=budget, **options)
    found = [resolve_config(spec, drafter=name, speculation=given)[0] for name in names]
    replace = dataclasses.replace
    if lookup is None and chooses:
        found = [replace(one, lookup=suits_lookup(spec, one.drafter)) for one in found]
    configs = tuple(replace(config, sampling=MIXED) for config in found)
    if learns is not None:
        configs = tuple(
            replace(config, evidence=learns[1] if config.drafter == learns[0] else 0)
            for config in configs
        )
        if not any(config.evidence for config in configs):
            raise ValueError(
                f"drafter {learns[0]!r} learns, and the engine has "
                f"{', '.join(repr(one.drafter) for one in configs)}: add it, or adapt one of these"
            )
    return configs[0] if len(configs) == 1 else configs


def list_limits(spec: Spec, config: Config) -> tuple[DraftLimits, ...]:
    """List what the drafters can do."""
    plans = [(one.drafter, make_plan(spec, one)) for one in list_configs(config)]
    return tuple(DraftLimits(name, plan.longest - 1, plan.widths[-1]) for name, plan in plans)


def choose_capacity(spec: Spec, config: Config, capacity: int | None) -> tuple[int, int]:
    """Choose the rows of a slot's caches, and most tokens of a request: (rows, room).

    Args:
      capacity: wanted rows; None: 2048, or what the model's positions need.
    """
    slack, positions = max(join_plans(spec, config).longest, QUEUE), spec.target.max_positions
    wanted = min(2048, positions + slack) if capacity is None else check_count("capacity", capacity)
    rows = round_up(wanted, prompt_chunk())
    if rows <= slack + 1:
        raise ValueError(f"capacity is {capacity}: give more than {slack + 1} rows")
    return rows, min(rows - slack, positions)


def choose_rules(rule: str, edges: tuple[int, ...] | None, slots: int, rows: int) -> Rules:
    """Choose how rows are shared, and for which numbers of them rounds are compiled.

    Args:
      edges: of drafted rounds; None: see `choose_edges`.
      rows: of a tree.
    """
    chosen = choose_edges(slots, rows) if edges is None else _check_edges(edges, slots)
    # Every row costs on a CPU, and an engine of several slots often has one request.
    on_cpu = current_device().platform == "cpu"
    return Rules(rule, chosen, tuple(few for few in (1, 2) if on_cpu and few < chosen[0]))


def choose_edges(slots: int, rows: int) -> tuple[int, ...]:
    """Choose the numbers of rows to compile for: powers of two up to all rows of all slots.

    A GPU takes as long for fewer rows than the first as for these.

    Args:
      slots: B.
      rows: rows of a tree.
    """
    most = max(slots, min(slots * rows, _MOST_ROWS))
    least = 4 if current_device().platform == "cpu" else 16
    edges, edge = [], min(least, slots * rows)
    while edge < most:
        edges.append(edge)
        edge *= 2
    return (*edges, most)


def _check_edges(edges: tuple[int, ...], slots: int) -> tuple[int, ...]:
    rising = tuple(sorted({check_count("edges", edge) for edge in edges}))
    if not rising or rising[-1] < slots:
        raise ValueError(f"edges are {rising}: the last must be at least the {slots} slots")
    return rising


def choose_parts(slots: int) -> tuple[int, ...]:
    """Choose of how many neighbouring slots rounds on a CPU can be: one, and all.

    A drafter's forward pass there takes as much longer as it has slots, whether they decode or not,
    so it pays for one request more than for several.
    """
    return tuple(sorted({1, slots}))


def compiles_in_background(params: Params) -> bool:
    """Whether programs may be compiled while others run.

    XLA times kernels while it compiles for a GPU, and several processes must call programs alike.
    """
    on_cpu = current_device().platform == "cpu"
    return on_cpu and jax.process_count() == 1 and params.layout is None


def check_seconds(seconds: float | None) -> float | None:
    """Check how long a visit may take."""
    if seconds is None or (isinstance(seconds, float | int) and 0 < seconds <= 60):
        return seconds
    raise ValueError(f"visit_seconds is {seconds!r}: give a number of seconds up to 60, or None")


def check_costs(costs: Costs, rules: Rules, slots: int) -> None:
    """Check that costs are of the rounds of these rules."""
    plain = rules.plain_edges(slots)
    if len(costs.drafted) != len(rules.edges) or len(costs.plain) < len(plain):
        raise ValueError(
            f"costs are of {len(costs.drafted)} drafted and {len(costs.plain)} plain rounds: give "
            f"those of {rules.edges} and of {plain} rows"
        )
