"""Make a serving engine: choose its sizes and check its options."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxspec.builders import Builder
from jaxspec.call.arguments import check_choice, check_count
from jaxspec.call.resolve import BUDGET, resolve_config
from jaxspec.core.params import Params, Spec, check_params
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.core.runtime.near_miss import naming_options
from jaxspec.core.sampling.settings import MIXED
from jaxspec.io.program_cache import keep_programs
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.round.plan import QUEUE, make_plan, suits_lookup
from jaxspec.round.sizes import prompt_chunk, round_up
from jaxspec.serve.checks import DraftLimits, Limits
from jaxspec.serve.drafters import Config, join_plans, list_configs
from jaxspec.serve.engine import Engine
from jaxspec.serve.on_device.logprobs import MOST
from jaxspec.serve.on_device.plan import RULES, WEIGHING
from jaxspec.serve.on_device.rounds import Rules
from jaxspec.serve.on_device.slots import MOST_ROUNDS
from jaxspec.serve.scheduling.costs import Costs
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.follow import Followers, check_processes
from jaxspec.serve.scheduling.pace import VISIT_SECONDS, Pace
from jaxspec.serve.scheduling.schedule import Schedule
from jaxspec.serve.scheduling.waiting import WaitingQueue
from jaxspec.serve.scheduling.warming import Compiler
from jaxspec.targets.layouts.panel_copies import with_panels
from pallas_kernels.device import current_device

# Most rows that a round verifies, however many slots there are.
_MOST_ROWS = 512
# Drafters that an engine tries by itself. Each more makes its programs larger, and has caches.
_MOST_TRIED = 2
# Most rows of a slot on a CPU, unless the caller says otherwise.
CPU_BUDGET = 8


@naming_options
@under_own_settings
def make_engine(
    params: Params,
    *,
    slots: int = 8,
    capacity: int | None = None,
    method: str | Sequence[str] | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    lookup: bool | None = None,
    score_temperature: float | None = None,
    rule: str = "global",
    edges: tuple[int, ...] | None = None,
    queue: int = 256,
    rounds: int = MOST_ROUNDS,
    visit_seconds: float | None = VISIT_SECONDS,
    max_logprobs: int = 0,
    costs: Costs | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Make an engine; nothing runs or compiles before `Engine.warm_up` or the first visit.

    Several processes that share a target all make it, with the same options: process 0 takes the
    requests, and the others call `Engine.follow`.

    Args:
      params: from `jaxspec.load`.
      slots: requests that decode at the same time.
      capacity: rows of each slot's key-value caches (None: 2048, or what the model's positions need).
      method: as in `jaxspec.decode`; or names of several drafters, from which each request chooses
        one. The first is that of requests that name none. None: the first two that are loaded, and
        requests that name none get the one that has been faster.
      builder, block_size, depth, score_temperature: as in `jaxspec.decode`, for all drafters.
      lookup: mix prompt lookup into what the drafters propose (None: as `jaxspec.decode` does by
        default, if the rule weighs costs and the target is on one device).
      budget: most rows of a slot in a round, the root included (None: 32; on a CPU, where more rows
        seldom pay and every number of rows takes seconds to compile, 8).
      rule: how a round's rows are shared, one of `jaxspec.serve.on_device.plan.RULES`; `ar` uses no drafter.
      edges: numbers of rows that verification is compiled for (None: powers of two).
      queue: requests that may wait, at least 1; each waits until the next visit.
      rounds: most rounds of a visit, up to 16.
      visit_seconds: a visit runs as many rounds as fit into so many seconds: more take less of the
        host's time, fewer stream more smoothly. None: as many as `rounds` says.
      max_logprobs: most alternatives that a request may ask for with the log-probabilities of its
        tokens, up to 20; 0: requests cannot ask for any.
      costs: seconds of rounds, if they are known (None: measured when the engine warms up, and kept);
        only the rules `global` and `equal` read them.
      clock: seconds, for deadlines.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range; or several processes have
        different options, or do not share the target.
    """
    keep_programs()
    check_params(params)
    slots, queue = check_count("slots", slots), check_count("queue", queue)
    rounds = check_count("rounds", rounds, 1, MOST_ROUNDS)
    most = check_count("max_logprobs", max_logprobs, 0, MOST)
    pace = Pace(_check_seconds(visit_seconds), rounds)
    check_choice("rule", rule, RULES)
    chooses = rule in WEIGHING and params.layout is None
    tries = chooses and method is None and len(params.spec.drafters) > 1
    if tries:
        method = [name for name, _ in params.spec.drafters[:_MOST_TRIED]]
    config = _choose_config(
        params.spec,
        # A drafter that never drafts would still have to absorb what is committed.
        "ar" if rule == "ar" else method,
        builder=builder,
        budget=_choose_budget() if budget is None else budget,
        block_size=block_size,
        depth=depth,
        lookup=lookup,
        chooses=chooses,
        score_temperature=score_temperature,
    )
    plan, methods = join_plans(params.spec, config), [one.method for one in list_configs(config)]
    slack, positions = max(plan.longest, QUEUE), params.spec.target.max_positions
    wanted = min(2048, positions + slack) if capacity is None else check_count("capacity", capacity)
    rows = round_up(wanted, prompt_chunk())
    if rows <= slack + 1:
        raise ValueError(f"capacity is {capacity}: give more than {slack + 1} rows")
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    limits = Limits(
        spec=params.spec,
        drafters=_list_limits(params.spec, config),
        room=min(rows - slack, positions),
        tokenizer=tokenizer,
        logprobs=min(most, params.spec.target.vocab_size),
    )
    chosen = choose_edges(slots, plan.widths[-1]) if edges is None else _check_edges(edges, slots)
    rules = Rules(rule, chosen, _choose_fewer(chosen))
    if costs is not None and methods != ["ar"]:
        _check_costs(costs, rules, slots)
    params = with_panels(params, methods, slots)
    sizes = slots, rows, limits.logprobs
    check_processes(params, config, rules, sizes)
    on_cpu = current_device().platform == "cpu"
    # XLA times kernels while it compiles for a GPU, and several processes must call programs alike.
    in_background = on_cpu and jax.process_count() == 1 and params.layout is None
    parts = choose_parts(slots) if in_background and costs is None else (slots,)
    device = Device(params, config, rules, *sizes, parts=parts)
    if jax.process_count() > 1 and jax.process_index() == 0:
        device.followers = Followers(device.takes)
    compiler = Compiler(device, in_background)
    schedule = Schedule(device, compiler, pace, costs, tries)
    waiting = WaitingQueue(queue, slots)
    return Engine(device, limits, waiting, pace, compiler, schedule, clock)


def choose_parts(slots: int) -> tuple[int, ...]:
    """Choose of how many neighbouring slots rounds on a CPU can be: one, and all.

    A drafter's forward pass there takes as much longer as it has slots, whether they decode or not,
    so it pays for one request more than for several.
    """
    return tuple(sorted({1, slots}))


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


def _choose_fewer(edges: tuple[int, ...]) -> tuple[int, ...]:
    """Choose the numbers of rows below the first edge that only autoregressive rounds use.

    Every row costs on a CPU, and an engine of several slots often has one request.
    """
    on_cpu = current_device().platform == "cpu"
    return tuple(rows for rows in (1, 2) if on_cpu and rows < edges[0])


def _choose_config(
    spec: Spec,
    method: str | Sequence[str] | None,
    lookup: bool | None,
    chooses: bool,
    **options: Any,
) -> Config:
    """Check the options of drafting, and return the config of the drafter, or of each of several.

    Args:
      chooses: whether the engine chooses what is not given, as `jaxspec.decode` does.
    """
    names = tuple(method) if isinstance(method, list | tuple) else (method,)
    if not names or len(set(names)) < len(names) or ("ar" in names and len(names) > 1):
        raise ValueError(
            f"method is {method!r}: give one name, or those of several drafters, each once; every "
            "request may ask for 'ar'"
        )
    mixes = bool(lookup)
    found = [resolve_config(spec, method=name, lookup=mixes, **options)[0] for name in names]
    replace = dataclasses.replace
    if lookup is None and chooses:
        found = [replace(one, lookup=suits_lookup(spec, one.method)) for one in found]
    configs = tuple(replace(config, sampling=MIXED) for config in found)
    return configs[0] if len(configs) == 1 else configs


def _list_limits(spec: Spec, config: Config) -> tuple[DraftLimits, ...]:
    plans = [(one.method, make_plan(spec, one)) for one in list_configs(config)]
    return tuple(DraftLimits(name, plan.longest - 1, plan.widths[-1]) for name, plan in plans)


def _choose_budget() -> int:
    return CPU_BUDGET if current_device().platform == "cpu" else BUDGET


def _check_seconds(seconds: float | None) -> float | None:
    if seconds is None or (isinstance(seconds, float | int) and 0 < seconds <= 60):
        return seconds
    raise ValueError(f"visit_seconds is {seconds!r}: give a number of seconds up to 60, or None")


def _check_costs(costs: Costs, rules: Rules, slots: int) -> None:
    plain = rules.plain_edges(slots)
    if len(costs.drafted) != len(rules.edges) or len(costs.plain) < len(plain):
        raise ValueError(
            f"costs are of {len(costs.drafted)} drafted and {len(costs.plain)} plain rounds: give "
            f"those of {rules.edges} and of {plain} rows"
        )


def _check_edges(edges: tuple[int, ...], slots: int) -> tuple[int, ...]:
    rising = tuple(sorted({check_count("edges", edge) for edge in edges}))
    if not rising or rising[-1] < slots:
        raise ValueError(f"edges are {rising}: the last must be at least the {slots} slots")
    return rising
