"""What rounds take on this machine by block size, and what BlockPilot's prediction takes: the clock
of its labels by speed.

    python -m training.policies.block_times --drafter dflash --sizes 6 7 8 9 10 --out times.json

Fresh clocks of whole answers are noise where a few percent are at stake, so answers are charged
this table instead.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.calibrate import about, round_seconds, tokens_of
from jaxspec.core.params import Params
from jaxspec.engine.session import prepare
from jaxspec.policies.learned.blockpilot import Predictor, init_layers_of, make_blockpilot
from jaxspec.policies.protocol import Observation, Policy
from training.command import one_line_errors
from training.policies.block_replay import decode_settings

# Predictions of a sample, and samples.
CALLS, SAMPLES = 4, 15


@dataclasses.dataclass(frozen=True)
class BlockTimes:
    """Seconds; C block sizes, K context lengths.

    Attributes:
      sizes: [C], ascending. contexts: [K], cached tokens.
      alone: [C, K], of a round compiled for this size.
      chosen: [C, K], of a round of a policy that chose this size, compiled for all of them: it
        drafts the largest block.
      predict: of one prediction, by what the network reads, a reduction of `BlockPilotSettings`.
      about: what they are of: device, model, drafter and so on.
    """

    sizes: tuple[int, ...]
    contexts: np.ndarray
    alone: np.ndarray
    chosen: np.ndarray
    predict: dict[str, float]
    about: dict


@dataclasses.dataclass
class BlockTimesOptions:
    """Options of the measurement.

    Attributes:
      out: JSON file to write.
      sizes: block sizes that a policy is to choose from.
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


def policy_widths(sizes, builder: str, budget: int) -> tuple[int, ...]:
    """Rows to compile verification for: those of every block, or the whole tree."""
    return tuple(sizes) if builder == "chain" else (budget,)


def measure_blocks(params: Params, method: str, options: BlockTimesOptions) -> BlockTimes:
    """Median times of rounds, one sequence at a time, and of predictions."""
    from scipy.optimize import isotonic_regression

    sizes, vocab, largest = tuple(options.sizes), params.spec.target.vocab_size, max(options.sizes)
    trees = {
        size: {"method": method} | decode_settings(size, options.builder, options.budget)
        for size in sizes
    }
    widths = policy_widths(sizes, options.builder, options.budget)
    tokens = tokens_of(params, trees[largest])
    rows = []
    for context in options.contexts:
        prompt = np.random.default_rng(0).integers(0, vocab, context).tolist()
        sessions = [
            prepare(params, prompt, max_new_tokens=tokens, ignore_eos=True, **settings)
            for settings in (
                *trees.values(),
                *(
                    trees[largest] | {"policy": _always(sizes, number, vocab, widths)}
                    for number in range(len(sizes))
                ),
            )
        ]
        taken = np.split(
            round_seconds([(session, None) for session in sessions], options.repeats), 2
        )
        # Larger blocks do not take less time: where they seem to, a choice by these times would
        # fall for the noise in them.
        rows.append(np.concatenate([isotonic_regression(own).x for own in taken]))
    alone, chosen = np.split(np.transpose(rows), 2)
    predict = {
        name: predict_seconds(sizes, vocab, name, options) for name in ("all", "top", "projection")
    }
    told = about(params, method, {"builder": options.builder}) | {
        "model": options.target,
        "dtype": str(params.dtype),
    }
    told |= {
        "jax": jax.__version__,
        "width": options.width,
        "layers": options.layers,
        "rank": options.rank,
    }
    return BlockTimes(sizes, np.asarray(options.contexts, float), alone, chosen, predict, told)


def _always(sizes, number: int, vocab: int, widths) -> Policy:
    """A policy that always chooses one size."""
    layer = {
        "kernel": jnp.zeros((vocab, len(sizes))),
        "bias": jnp.zeros(len(sizes)).at[number].set(1.0),
    }
    return make_blockpilot(sizes, Predictor([layer]), widths=widths)


def predict_seconds(sizes, vocab: int, reduction: str, options) -> float:
    """Median seconds of one prediction from logits on the device; `options` with `width`, `layers`
    and `rank`.
    """
    inputs = vocab if reduction == "all" else min(options.rank, vocab)
    projection = (
        {"mean": jnp.zeros(vocab), "axes": jnp.ones((vocab, inputs))}
        if reduction == "projection"
        else None
    )
    layers = init_layers_of(jax.random.key(0), inputs, len(sizes), options.width, options.layers)
    policy = make_blockpilot(
        sizes, Predictor(layers, projection), reduction=reduction, top=options.rank
    )
    act = jax.jit(policy.settings.functions().act.block)
    logits = jax.random.normal(jax.random.key(1), (1, vocab))
    seen = Observation(jnp.zeros(1, jnp.int32), jnp.ones(1, bool), logits=logits)
    samples = []
    for _ in range(SAMPLES + 1):  # the first compiles
        began = time.perf_counter()
        for _ in range(CALLS):
            jax.block_until_ready(act(policy.controls, policy.state, seen))
        samples.append((time.perf_counter() - began) / CALLS)
    return float(np.median(samples[1:]))


def save_block_times(times: BlockTimes, path: Path) -> None:
    """Write times as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in vars(times).items()
    }
    path.write_text(json.dumps(fields, indent=1) + "\n")


def load_block_times(path: Path, sizes) -> BlockTimes:
    """Read times of `save_block_times`.

    Raises:
      FileNotFoundError: no such file. ValueError: it holds no such times, or those of other sizes.
    """
    try:
        found = json.loads(path.read_text())
        arrays = {name: np.asarray(found[name], float) for name in ("contexts", "alone", "chosen")}
        times = BlockTimes(
            tuple(found["sizes"]), predict=found["predict"], about=found["about"], **arrays
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} holds no times of blocks ({error!r}): measure them again"
        ) from None
    if times.sizes != tuple(sizes):
        raise ValueError(
            f"{path} is of block sizes {list(times.sizes)}, not {list(sizes)}: give another file, or delete it"
        )
    return times


def main(options: BlockTimesOptions) -> None:
    """Measure, print and write."""
    params = jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype)
    times = measure_blocks(params, params.spec.drafters[0][0], options)
    save_block_times(times, options.out)
    for size, alone, chosen in zip(times.sizes, 1e3 * times.alone, 1e3 * times.chosen, strict=True):
        print(f"block of {size}: {np.round(alone, 3)} ms alone, {np.round(chosen, 3)} ms chosen")
    print(
        "a prediction:",
        ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in times.predict.items()),
    )


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(BlockTimesOptions))
