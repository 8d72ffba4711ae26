"""Measure the time of a round for each block size, and the time of BlockPilot's prediction.

BlockPilot's speed labels use these times:

    python -m jaxspec.training.policies.block_costs --drafter dflash --sizes 6 7 8 9 10 \\
        --out times.json

Sizes differ by a few percent, and timing every answer anew is too noisy to show that. An answer's
time is therefore computed from this table.
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

from jaxspec.core.params import Params
from jaxspec.costs.files import decode_costs, encode_costs, read_cost_file, write_json
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.policies.learned.blockpilot import Predictor, init_blockpilot, make_blockpilot
from jaxspec.policies.protocol import Observation, Policy
from jaxspec.tuner.calibrate.by_rows import about
from jaxspec.tuner.calibrate.round_clock import Case, time_rounds

from ..run.command import one_line_errors
from .block_replay import decode_settings
from .options import ModelsToLoad

# Predictions per sample, and number of samples.
CALLS, SAMPLES = 4, 15


class BlockCosts(NamedTuple):
    """Times of rounds and of predictions.

    Attributes:
      single: times by block size of rounds that are compiled for that size only.
      chosen: times by block size of rounds in which a policy chose that size. Their program holds
        a branch for each size, and they run only the branch of the chosen one.
      predict: {reduction of `BlockPilotConfig`: seconds of one prediction}.
    """

    single: RoundCosts
    chosen: RoundCosts
    predict: dict[str, float]


@dataclasses.dataclass
class BlockCostsOptions(ModelsToLoad):
    """Options of the measurement.

    Attributes:
      out: JSON file to write.
      sizes: block sizes that the policy may choose, in ascending order.
      builder: of the trees; a chain verifies the whole block.
      budget: verification budget of the trees; a chain ignores it.
      contexts: numbers of cached tokens to measure at.
      repeats: samples of each round; the sizes take turns.
      width: hidden units of the predictor's layers.
      layers: of the predictor.
      rank: logits or projection axes that the predictor reads, unless it reads all logits.
    """

    out: Path
    sizes: tuple[int, ...]
    builder: str = "chain"
    budget: int = 32
    contexts: tuple[int, ...] = (64, 256)
    repeats: int = 9
    width: int = 2048
    layers: int = 2
    rank: int = 256


def policy_widths(sizes: Sequence[int], builder: str, budget: int) -> tuple[int, ...]:
    """Return the row counts to compile verification for: every block size, or a tree's budget."""
    return tuple(sizes) if builder == "chain" else (budget,)


def measure_blocks(params: Params, drafter: str, options: BlockCostsOptions) -> BlockCosts:
    """Measure median times of rounds (one sequence at a time) and of predictions."""
    from scipy.optimize import isotonic_regression

    sizes, vocab = tuple(options.sizes), params.spec.target.vocab_size
    trees = [
        {"drafter": drafter} | decode_settings(size, options.builder, options.budget)
        for size in sizes
    ]
    widths = policy_widths(sizes, options.builder, options.budget)
    always = [{"policy": _always(sizes, number, vocab, widths)} for number in range(len(sizes))]
    cases = [
        Case({"drafter": "ar"}),
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
        # A larger block never takes less time. Where the samples say otherwise, that is noise, and
        # the labels would follow it: make the times monotonic.
        taken = np.transpose([isotonic_regression(own).x for own in taken])
        return make_costs(
            widths[-1:],
            contexts,
            0.0,
            taken[:, None],
            plain=seconds[:, 0],
            blocks=sizes,
            about=about(params, drafter, {"builder": options.builder}) | measured,
        )

    single, chosen = (table(taken) for taken in np.split(seconds[:, 1:], 2, axis=1))
    predict = {
        name: predict_seconds(sizes, vocab, name, options) for name in ("all", "top", "projection")
    }
    return BlockCosts(single, chosen, predict)


def _always(sizes: Sequence[int], number: int, vocab: int, widths: tuple[int, ...]) -> Policy:
    """Return a policy that always chooses `sizes[number]`."""
    layer = {
        "kernel": jnp.zeros((vocab, len(sizes))),
        "bias": jnp.zeros(len(sizes)).at[number].set(1.0),
    }
    return make_blockpilot(sizes, Predictor([layer]), widths=widths)


def predict_seconds(
    sizes: Sequence[int], vocab: int, reduction: str, options: BlockCostsOptions
) -> float:
    """Measure the median seconds of one prediction from logits on the device."""
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


def predictor_bytes(vocab: int, options: BlockCostsOptions) -> dict[str, int]:
    """Compute the bytes of the predictor's float32 weights, by reduction."""
    found = {}
    for name in ("all", "top", "projection"):
        inputs = vocab if name == "all" else min(options.rank, vocab)
        layers = jax.eval_shape(
            lambda key, inputs=inputs: init_blockpilot(
                key, inputs, len(options.sizes), options.width, options.layers
            ),
            jax.random.key(0),
        )
        numbers = sum(leaf.size for leaf in jax.tree.leaves(layers))
        found[name] = 4 * (numbers + vocab * (1 + inputs) * (name == "projection"))
    return found


def save_block_costs(costs: BlockCosts, path: Path) -> None:
    """Write the costs as JSON."""
    tables = {name: encode_costs(getattr(costs, name)) for name in ("single", "chosen")}
    write_json(tables | {"predict": costs.predict}, path)


def load_block_costs(path: Path, sizes: Sequence[int]) -> BlockCosts:
    """Read costs that `save_block_costs` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file holds no block costs, or costs of other sizes.
    """
    found = read_cost_file(path)
    try:
        single, chosen, predict = (found[name] for name in BlockCosts._fields)
        predict = {name: float(seconds) for name, seconds in predict.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no block costs ({error!r}): measure them with "
            "`python -m jaxspec.training.policies.block_costs`"
        ) from None
    costs = BlockCosts(decode_costs(single, path), decode_costs(chosen, path), predict)
    if costs.single.blocks != tuple(sizes):
        raise ValueError(
            f"{path} holds block sizes {list(costs.single.blocks)}, not {list(sizes)}: "
            "give another file, or delete it"
        )
    return costs


def main(options: BlockCostsOptions) -> None:
    """Measure the times, print them and write them."""
    params = options.load()
    costs = measure_blocks(params, params.spec.default_drafter, options)
    save_block_costs(costs, options.out)
    for i, size in enumerate(costs.single.blocks):
        single, chosen = (np.round(1e3 * one.verify[i, 0], 3) for one in costs[:2])
        print(f"block of {size}: {single} ms compiled for this size, {chosen} ms for all sizes")
    memory = predictor_bytes(params.spec.target.vocab_size, options)
    for name, seconds in costs.predict.items():
        print(f"one prediction, {name}: {1e3 * seconds:.3f} ms, {memory[name] / 1e6:.1f} MB")


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(BlockCostsOptions))
