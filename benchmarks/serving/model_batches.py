"""Budgets and rules at growing numbers of slots, on a GPU you don't have.

JetSpec's table 11 asks which budget of a tree pays at which batch. Here trees are those of a small
model, recorded, and rounds take what the roofline of a device says for a large one
(`jaxspec.costs.shared_roofline`). Nothing is timed: read the shape, not the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.adapt.modelled import make_model
from benchmarks.serving.recorded_trees import Trees
from benchmarks.serving.replay import replay
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.costs.roofline import DEVICES
from jaxspec.costs.shared_roofline import COMPUTE, KERNELS, LAUNCH, MEMORY, forward_seconds
from jaxspec.serve.choose_sizes import choose_edges
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.tuner.serving.costs import Costs

# Rows that the drafter runs for each slot: a block.
BLOCK = 16


def model_batches(
    trees: Trees,
    batches: Sequence[int],
    *,
    arch: str,
    device: str,
    context: int,
    samples: int = 32768,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Replay full engines of every number of slots under every rule.

    `fixed` runs with trees of several budgets, up to that of the recorded ones. The other rules
    choose from the largest.

    Args:
      trees: of any model.
      arch, device: names of the target and the device whose rounds are modelled.
      context: cached tokens of each slot.
      samples: rounds of slots that each replay counts, at least; so few slots run more rounds.

    Returns:
      A record per number of slots and rule.

    Raises:
      ValueError: unknown name, or an architecture with experts.
    """
    make_model(arch, device)  # checks the names
    most = trees.logprob.shape[2]
    budgets = [budget for budget in (8, 16, 32, 64, 128, 256) if budget < most] + [most]
    records = []
    for slots in batches:
        rounds = max(_ROUNDS, samples // slots)
        runs = [(f"fixed {budget}", "fixed", budget) for budget in budgets]
        for name, rule, budget in [("ar", "ar", 1), *runs, *((r, r, most) for r in _CHOOSING)]:
            progress(f"{slots} slots, {name}")
            edges = (slots * budget,) if rule == "fixed" else choose_edges(slots, most)
            rules = Rules(rule, edges)
            costs = model_costs(arch, device, slots, edges, context)
            reached = replay(trees, slots, rules, costs, budget=budget, rounds=rounds)
            records.append({"slots": slots, "rule": name} | reached._asdict())
    return records


_CHOOSING = ("equal", "global")
# Rounds of a replay, at least: choices to draft take some to settle.
_ROUNDS = 256


def model_costs(arch: str, device: str, slots: int, edges: Sequence[int], context: int) -> Costs:
    """Model what rounds of `slots` slots take."""
    target, rates, model = ARCHITECTURES[arch], DEVICES[device], make_model(arch, device)

    def verify(rows: int) -> float:
        return forward_seconds(target, rates, 1, batch=slots, rows=rows / slots, context=context)

    moved, flops = 2 * model.drafter, 2 * model.drafter * slots * BLOCK
    draft = max(moved / (MEMORY * rates.bandwidth), flops / (COMPUTE * rates.flops))
    draft += KERNELS * LAUNCH
    plain = (*(edge for edge in edges if edge < slots), slots)
    return Costs(
        tuple(verify(rows) + draft for rows in edges), tuple(verify(rows) for rows in plain)
    )


def find_crossover(records: Sequence[dict[str, Any]], rule: str) -> int | None:
    """Return the smallest number of slots from which on a rule is slower than `ar`, if there is
    one.
    """
    speed = {(one["slots"], one["rule"]): one["tokens_per_second"] for one in records}
    batches = sorted({one["slots"] for one in records})
    slower = [slots for slots in batches if speed[slots, rule] < speed[slots, "ar"]]
    faster = [slots for slots in batches if slots not in slower]
    after = [slots for slots in slower if slots > max(faster, default=0)]
    return min(after, default=None)


def render_batches(records: Sequence[dict[str, Any]]) -> str:
    """Render tables: tokens a second by rule and slots, and where rules fall below `ar`."""
    rules = list(dict.fromkeys(one["rule"] for one in records))
    batches = sorted({one["slots"] for one in records})
    by = {(one["slots"], one["rule"]): one for one in records}
    columns = [Column("slots"), *(Column(rule, fixed(0), "right") for rule in rules)]
    columns += [Column(f"{rule} rows", fixed(1), "right") for rule in _CHOOSING]
    columns += [Column("tok/round", fixed(2), "right"), Column("drafted", fixed(2), "right")]
    rows: list[list[Any]] = []
    for slots in batches:
        best = by[slots, "global"]
        speeds = [by[slots, rule]["tokens_per_second"] for rule in rules]
        rows.append([str(slots), *speeds, *(by[slots, rule]["rows"] for rule in _CHOOSING)])
        rows[-1] += [best["tokens_per_round"], best["drafted"]]
    lines = [Table(columns, rows).to_text(), "Tokens a second; the last two columns are of global."]
    for rule in rules:
        crossover = find_crossover(records, rule)
        if rule != "ar" and crossover is not None:
            lines.append(f"{rule} is slower than ar from {crossover} slots on.")
    return "\n".join(lines)
