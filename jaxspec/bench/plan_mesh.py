"""Which devices should share a target: memory and expected times of every mesh that they can form.

GPUs form replicas of a model, and the GPUs of a replica share it. Times are those of
`jaxspec.costs.shared_roofline`: arithmetic, not measurements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.core.config import TargetConfig
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.costs.roofline import DEVICES
from jaxspec.costs.shared_roofline import (
    choose_experts_split,
    count_cache,
    count_weights,
    shared_costs,
    sum_seconds,
)
from jaxspec.targets.sharding.shares import list_counts
from pallas_kernels.aot.gpus import GPUS

# Share of a GPU's memory that weights and caches may take; programs and activations need the rest.
USABLE = 0.9
# GPUs whose memory and peak rates are known.
KNOWN = tuple(name for name in GPUS if name in DEVICES)


class Load(NamedTuple):
    """What the GPUs are to do.

    Attributes:
      batch: sequences of all replicas together.
      rows: that a round verifies per sequence.
      context: tokens of a sequence.
      itemsize: bytes of a weight.
      drafter: bytes of the drafter, which every GPU holds and a round reads once.
    """

    batch: int
    rows: int
    context: int
    itemsize: float = 2
    drafter: float = 0.0


def plan_meshes(config: TargetConfig, gpu: str, count: int, load: Load) -> list[dict[str, Any]]:
    """Plan every way in which `count` GPUs can hold a target.

    Returns:
      A record for each number of GPUs that may share the target, ascending: `replicas`, `devices`
      of a replica, `batch` of a replica, bytes per GPU (`weights`, `cache`, `total`), whether they
      `fit`, and seconds (`plain` of an autoregressive round, `round` of one that verifies
      `load.rows` rows, `sums` of the collectives in it), and how to share `experts`, `channel` or
      `expert`, None if there are none to share. Times are those by channel.

    Raises:
      ValueError: the GPU's memory or its peak rates are not known; the message lists the known
        ones.
    """
    if gpu not in KNOWN:
        raise ValueError(
            f"memory and peak rates of {gpu!r} are not known: {choose_one(gpu, KNOWN)}"
        )
    memory = GPUS[gpu].memory * 2**30
    counts = [devices for devices in list_counts(config) if count % devices == 0]
    return [_plan_one(config, gpu, memory, count // devices, devices, load) for devices in counts]


def _plan_one(
    config: TargetConfig, gpu: str, memory: int, replicas: int, devices: int, load: Load
) -> dict[str, Any]:
    batch = math.ceil(load.batch / replicas)
    weights = count_weights(config, devices, load.itemsize).held + load.drafter
    cache = count_cache(config, devices, batch * load.context)
    costs = shared_costs(
        config,
        DEVICES[gpu],
        devices,
        (1, load.rows) if load.rows > 1 else (1,),
        (load.context,),
        batch=batch,
        draft=load.drafter / DEVICES[gpu].bandwidth,
        itemsize=load.itemsize,
    )
    return {
        "replicas": replicas,
        "devices": devices,
        "batch": batch,
        "weights": weights,
        "cache": cache,
        "total": weights + cache,
        "fit": weights + cache <= USABLE * memory,
        "plain": float(costs.plain[0]),
        "round": float(costs.seconds(load.context)),
        "sums": sum_seconds(config, devices, batch * load.rows),
        "experts": choose_experts_split(config, devices, batch * load.rows, load.itemsize),
    }


def choose_mesh(plans: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Choose the plan with the shortest round among those that fit; None if none does.

    All replicas together commit the same tokens in a round, so it is also the fastest in tokens per
    second.
    """
    fitting = [plan for plan in plans if plan["fit"]]
    return min(fitting, key=lambda plan: plan["round"]) if fitting else None


def render_plan(plans: list[dict[str, Any]]) -> str:
    """Render plans as a table, and say which mesh to take."""
    size, seconds = fixed(1, " GB"), fixed(1, " ms")
    rows = [
        (
            f"{plan['replicas']} x {plan['devices']}",
            plan["batch"],
            *(size(plan[name] / 1e9) for name in ("weights", "cache")),
            "yes" if plan["fit"] else "no",
            *(seconds(1e3 * plan[name]) for name in ("plain", "round", "sums")),
        )
        for plan in plans
    ]
    titles = ("batch of each", "weights", "cache", "fits", "autoregressive", "round", "of it, sums")
    table = Table(
        [Column("replicas x GPUs"), *(Column(title, align="right") for title in titles)], rows
    )
    best = choose_mesh(plans)
    if best is None:
        advice = "None fits: take more GPUs, a smaller --batch or --context, or --quantize int8."
    else:
        option = f"--tp {best['devices']}" if best["devices"] > 1 else "one GPU"
        option += " --experts expert" if best["experts"] == "expert" else ""
        count = best["replicas"]
        advice = f"Take {count} processes with {option} each." if count > 1 else f"Take {option}."
    return f"{table.to_text()}\n\n{advice} Sizes are per GPU; times are modelled, not measured."
