"""Make a serving engine: choose its sizes and check its options."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import jax

from jaxspec.builders import Builder
from jaxspec.call.arguments import check_choice, check_count
from jaxspec.core.params import Params, check_params
from jaxspec.core.recurrent import refuse_recurrent
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.core.runtime.near_miss import naming_options
from jaxspec.io.program_cache import keep_programs
from jaxspec.serve import choose_sizes
from jaxspec.serve.adapts import Adapts
from jaxspec.serve.checks import Limits
from jaxspec.serve.engine import Engine
from jaxspec.serve.on_device.joint_plan import join_plans, list_configs
from jaxspec.serve.on_device.logprobs import MOST
from jaxspec.serve.on_device.share_rows import RULES, WEIGHING
from jaxspec.serve.on_device.slots import MOST_ROUNDS
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.follow import Followers, check_processes
from jaxspec.serve.scheduling.pace import VISIT_SECONDS, Pace
from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.tuner import Tuner, process_tuner

# Drafters that an engine tries by itself. Each more makes its programs larger, and has caches.
_MOST_TRIED = 2


@naming_options
@under_own_settings
def make_engine(
    params: Params,
    *,
    slots: int = 8,
    capacity: int | None = None,
    drafter: str | Sequence[str] | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    lookup: bool | str | None = None,
    score_temperature: float | None = None,
    rule: str = "global",
    edges: tuple[int, ...] | None = None,
    queue: int = 256,
    rounds: int = MOST_ROUNDS,
    visit_seconds: float | None = VISIT_SECONDS,
    max_logprobs: int = 0,
    costs: Costs | None = None,
    tuner: Tuner | None = None,
    adapts: Adapts | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Make an engine; nothing runs or compiles before `Engine.warm_up` or the first visit.

    Several processes that share a target all make it, with the same options: process 0 takes the
    requests, and the others call `Engine.follow`.

    Args:
      params: from `jaxspec.load`.
      slots: requests that decode at the same time.
      capacity: rows of each slot's key-value caches (None: 2048, or what the model's positions
        need).
      drafter: as in `jaxspec.decode`; or names of several drafters, from which each request chooses
        one. The first is that of requests that name none. None: the first two that are loaded, and
        requests that name none get the one that has been faster.
      builder, block_size, depth, score_temperature: as in `jaxspec.decode`, for all drafters.
      lookup: mix looked-up tokens into what the drafters propose, see `Speculation` (None: as `jaxspec.decode` does by
        default, if the rule weighs costs and the target is on one device).
      budget: most rows of a slot in a round, the root included (None: 32; on a CPU, where more rows
        seldom pay and every number of rows takes seconds to compile, 8).
      rule: how a round's rows are shared, one of `jaxspec.serve.on_device.share_rows.RULES`; `ar`
        uses no drafter.
      edges: numbers of rows that verification is compiled for (None: powers of two).
      queue: requests that may wait, at least 1; each waits until the next visit.
      rounds: most rounds of a visit, up to 16.
      visit_seconds: a visit runs as many rounds as fit into so many seconds: more take less of the
        host's time, fewer stream more smoothly. None: as many as `rounds` says.
      max_logprobs: most alternatives that a request may ask for with the log-probabilities of its
        tokens, up to 20; 0: requests cannot ask for any.
      costs: seconds of rounds, if they are known (None: measured when the engine warms up, and
        kept); only the rules `global` and `equal` read them.
      tuner: keeps these costs, and chooses among drafters (None: the process's own).
      adapts: trains a drafter, see `jaxspec.adapt.serving.make_adaptive_engine`.
      clock: seconds, for deadlines.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range; or several processes have
        different options, or do not share the target.
    """
    keep_programs()
    check_params(params)
    spec = params.spec
    refuse_recurrent(spec.target, "be served yet: use jaxspec.decode or jaxspec.stream")
    slots, queue = check_count("slots", slots), check_count("queue", queue)
    rounds = check_count("rounds", rounds, 1, MOST_ROUNDS)
    most = check_count("max_logprobs", max_logprobs, 0, MOST)
    pace = Pace(choose_sizes.check_seconds(visit_seconds), rounds)
    check_choice("rule", rule, RULES)
    chooses = rule in WEIGHING and params.layout is None
    learns = None
    if adapts is not None:
        learns = adapts.drafter, adapts.rows
        lookup = lookup or False  # copied tokens are no evidence of the drafter
    tries = chooses and drafter is None and len(spec.drafters) > 1
    if tries:
        drafter = [name for name, _ in spec.drafters[:_MOST_TRIED]]
    config = choose_sizes.choose_config(
        spec,
        # A drafter that never drafts would still have to absorb what is committed.
        "ar" if rule == "ar" else drafter,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        lookup=lookup,
        chooses=chooses,
        learns=learns,
        score_temperature=score_temperature,
    )
    names = [one.drafter for one in list_configs(config)]
    rows, room = choose_sizes.choose_capacity(spec, config, capacity)
    limits = Limits(
        spec=spec,
        drafters=choose_sizes.list_limits(spec, config),
        room=room,
        tokenizer=params.tokenizer,
        logprobs=min(most, spec.target.vocab_size),
    )
    rules = choose_sizes.choose_rules(rule, edges, slots, join_plans(spec, config).widths[-1])
    if costs is not None and names != ["ar"]:
        choose_sizes.check_costs(costs, rules, slots)
    tuner = process_tuner() if tuner is None else tuner
    params = tuner.lay_out(params, names, slots)
    shape = slots, rows, limits.logprobs
    check_processes(params, config, rules, shape)
    in_background = choose_sizes.compiles_in_background(params)
    parts = choose_sizes.choose_parts(slots) if in_background and costs is None else (slots,)
    device = Device(params, config, rules, *shape, parts=parts)
    if jax.process_count() > 1 and jax.process_index() == 0:
        device.followers = Followers(device.takes)
    return Engine(device, limits, pace, clock, queue, in_background, costs, tries, tuner, adapts)
