"""Measure what rounds cost by block size, and what BlockPilot's prediction costs: the clock of its
labels by speed.

    python -m training.policies.block_costs --drafter dflash --sizes 6 7 8 9 10 --out times.json

Timing whole answers afresh is too noisy for differences of a few percent, so answers are charged
this table instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.calibrate import about
from jaxspec.bench.measure.round_clock import Case, time_rounds
from jaxspec.core.params import Params
from jaxspec.costs.files import decode_costs, encode_costs, read_cost_file, write_json
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.policies.learned.blockpilot import Predictor, init_blockpilot, make_blockpilot
from jaxspec.policies.protocol import Observation, Policy
from training.command import one_line_errors
from training.policies.block_replay import decode_settings

# Predictions of a sample, and samples.
CALLS, SAMPLES = 4, 15


class BlockCosts(NamedTuple):
    """What rounds and predictions cost.

    Attributes:
      single: by block size, rounds that are compiled for this size only.
      chosen: by block size, rounds of a policy that chose this size, compiled for all sizes: they
        draft the largest block.
      predict: {reduction of `BlockPilotConfig`: seconds of one prediction}.
    """

    single: RoundCosts
    chosen: RoundCosts
    predict: dict[str, float]


@dataclasses.dataclass
class BlockCostsOptions:
    """Options of the measurement.

    Attributes:
      out: JSON file to write.
      sizes: block sizes that a policy is to choose from, ascending.
      target, drafter, dtype: as of `training.policies.blockpilot`.
      builder, budget: of the trees; a chain verifies the whole block.
      contexts: cached tokens to measure at. repeats: samples of each round, all sizes taking turns.
      width, layers, rank: of the networks.
    """

    out: Path
    sizes: tuple[int, ...]
    target: str = "mini"
    drafter: str = "dflash"
    dtype: str | None = None
    builder: str = "chain"
    budget: int = 32
    contexts: tuple[int, ...] = (64, 256)
    repeats: int = 9
    width: int = 2048
    layers: int = 2
    rank: int = 256


def policy_widths(sizes: Sequence[int], builder: str, budget: int) -> tuple[int, ...]:
    """Rows to compile verification for: those of every block, or the whole tree."""
    return tuple(sizes) if builder == "chain" else (budget,)


def measure_blocks(params: Params, method: str, options: BlockCostsOptions) -> BlockCosts:
    """Median times of rounds, one sequence at a time, and of predictions."""
    from scipy.optimize import isotonic_regression

    sizes, vocab = tuple(options.sizes), params.spec.target.vocab_size
    trees = [
        {"method": method} | decode_settings(size, options.builder, options.budget)
        for size in sizes
    ]
    widths = policy_widths(sizes, options.builder, options.budget)
    always = [{"policy": _always(sizes, number, vocab, widths)} for number in range(len(sizes))]
    cases = [
        Case({"method": "ar"}),
        *(Case(tree) for tree in trees),
        *(Case(trees[-1] | one) for one in always),
    ]
    contexts, seconds = time_rounds(params, cases, options.contexts, repeats=options.repeats)
    measured = {
        "model": options.target,
        "dtype": str(params.dtype),
        "jax": jax.__version__,
        "width": options.width,
        "layers": options.layers,
        "rank": options.rank,
    }

    def table(taken: np.ndarray) -> RoundCosts:
        # Larger blocks do not take less time: if they seem to, that is noise, and a choice by these
        # times would follow it.
        taken = np.transpose([isotonic_regression(own).x for own in taken])
        return make_costs(
            widths[-1:],
            contexts,
            0.0,
            taken[:, None],
            plain=seconds[:, 0],
            blocks=sizes,
            about=about(params, method, {"builder": options.builder}) | measured,
        )

    single, chosen = (table(taken) for taken in np.split(seconds[:, 1:], 2, axis=1))
    predict = {
        name: predict_seconds(sizes, vocab, name, options) for name in ("all", "top", "projection")
    }
    return BlockCosts(single, chosen, predict)


def _always(sizes: Sequence[int], number: int, vocab: int, widths: tuple[int, ...]) -> Policy:
    """A policy that always chooses one size."""
    layer = {
        "kernel": jnp.zeros((vocab, len(sizes))),
        "bias": jnp.zeros(len(sizes)).at[number].set(1.0),
    }
    return make_blockpilot(sizes, Predictor([layer]), widths=widths)


def predict_seconds(
    sizes: Sequence[int], vocab: int, reduction: str, options: BlockCostsOptions
) -> float:
    """Median seconds of one prediction from logits on the device."""
    inputs = vocab if reduction == "all" else min(options.rank, vocab)
    projection = (
        {"mean": jnp.zeros(vocab), "axes": jnp.ones((vocab, inputs))}
        if reduction == "projection"
        else None
    )
    layers = init_blockpilot(jax.random.key(0), inputs, len(sizes), options.width, options.layers)
    policy = make_blockpilot(
        sizes, Predictor(layers, projection), reduction=reduction, top=options.rank
    )
    act = jax.jit(policy.config.functions().act.block)
    logits = jax.random.normal(jax.random.key(1), (1, vocab))
    seen = Observation(jnp.zeros(1, jnp.int32), jnp.ones(1, bool), logits=logits)
    samples = []
    for _ in range(SAMPLES + 1):  # the first compiles
        began = time.perf_counter()
        for _ in range(CALLS):
            jax.block_until_ready(act(policy.controls, policy.state, seen))
        samples.append((time.perf_counter() - began) / CALLS)
    return float(np.median(samples[1:]))


def save_block_costs(costs: BlockCosts, path: Path) -> None:
    """Write costs as JSON."""
    tables = {name: encode_costs(getattr(costs, name)) for name in ("single", "chosen")}
    write_json(tables | {"predict": costs.predict}, path)


def load_block_costs(path: Path, sizes: Sequence[int]) -> BlockCosts:
    """Read costs of `save_block_costs`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file holds no such costs, or those of other sizes.
    """
    found = read_cost_file(path)
    try:
        single, chosen, predict = (found[name] for name in BlockCosts._fields)
        predict = {name: float(seconds) for name, seconds in predict.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no costs of blocks ({error!r}): measure them with "
            "`python -m training.policies.block_costs`"
        ) from None
    costs = BlockCosts(decode_costs(single, path), decode_costs(chosen, path), predict)
    if costs.single.blocks != tuple(sizes):
        raise ValueError(
            f"{path} is of block sizes {list(costs.single.blocks)}, not {list(sizes)}: give another "
            "file, or delete it"
        )
    return costs


def main(options: BlockCostsOptions) -> None:
    """Measure, print and write."""
    params = jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype)
    costs = measure_blocks(params, params.spec.drafters[0][0], options)
    save_block_costs(costs, options.out)
    for i, size in enumerate(costs.single.blocks):
        single, chosen = (np.round(1e3 * one.verify[i, 0], 3) for one in costs[:2])
        print(f"block of {size}: {single} ms compiled for this size, {chosen} ms chosen of all")
    print(
        "a prediction:",
        ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in costs.predict.items()),
    )


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(BlockCostsOptions))
