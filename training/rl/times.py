"""What rounds take on this machine, by draft steps and rows verified: the clock of the replay environment.

    python -m training.rl.times --out times.json --drafter eagle3

The rounds are those of the decode loop, compiled once, with a policy of constant depth and size. A round's time is taken to be
a sum: so many draft steps, and the rest by the compiled width that holds the rows. A step's time comes from the difference
between depths, the rest from rounds of one step. Rounds of other depths and sizes tell how far the sum is off.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec import api
from jaxspec.calibrate import default_contexts
from jaxspec.loop import run
from jaxspec.policies.static_size import Constants, make_static
from training.command import one_line_errors
from training.rl.record import RecordOptions, builder_of, decode_options

ROUNDS = 12
ARRAYS = ("contexts", "step", "rest", "plain")


@dataclasses.dataclass(frozen=True)
class RoundTimes:
    """Seconds of a round's parts; W widths, C context lengths, both ascending.

    Attributes:
      widths: rows that verification is compiled for. contexts: [C], cached tokens.
      step: [C], every draft step after the root's. rest: [W, C], all else: the root's proposal, the tree, verification,
        acceptance, commit and what the drafter absorbs. plain: [C], a round of plain decoding.
      about: what they are of: device, model, drafter and so on; with `error`, the largest relative one of the sum.
    """

    widths: tuple[int, ...]
    contexts: np.ndarray
    step: np.ndarray
    rest: np.ndarray
    plain: np.ndarray
    about: dict

    def seconds(self, context, steps: int, sizes: Sequence[int]) -> np.ndarray:
        """float32 [N, steps + 1, V], of rounds at `context` [N] with 0 to `steps` draft steps that verify `sizes` rows.

        Linear between the measured contexts and flat beyond; a size is charged the smallest width that holds it.
        """
        if max(sizes) > self.widths[-1]:
            raise ValueError(f"times reach {self.widths[-1]} rows, not {max(sizes)}: measure with these sizes")
        at = [next(i for i, width in enumerate(self.widths) if width >= size) for size in sizes]
        step = np.interp(context, self.contexts, self.step)
        rest = np.stack([np.interp(context, self.contexts, self.rest[i]) for i in at], axis=-1)
        drafted = step[:, None] * np.arange(steps + 1)
        return (drafted[:, :, None] + rest[:, None]).astype(np.float32)


def save_times(times: RoundTimes, path: Path) -> None:
    """Write times as JSON."""
    arrays = {name: np.asarray(getattr(times, name)).tolist() for name in ("widths", *ARRAYS)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": times.about, **arrays}, indent=1) + "\n")


def load_times(path: Path) -> RoundTimes:
    """Read times of `save_times`.

    Raises:
      FileNotFoundError: no such file. ValueError: it holds no such times.
    """
    try:
        found = json.loads(path.read_text())
        arrays = {name: np.asarray(found[name], np.float64) for name in ARRAYS}
        return RoundTimes(tuple(found["widths"]), about=found["about"], **arrays)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} holds no times of rounds ({error!r}): measure them with python -m training.rl.times"
        ) from None


def measure_times(params, options: RecordOptions, *, contexts: Sequence[int] | None = None, repeats: int = 5) -> RoundTimes:
    """Median times of rounds like the recorded ones, one sequence at a time; all depths and sizes take turns."""
    sizes, dynamic = tuple(options.sizes), builder_of(params, options) == "dynamic"
    widths, deepest = tuple(sorted({1, *sizes})), options.steps if dynamic else 0
    contexts = contexts or default_contexts(params.spec.target.max_positions, sizes[-1])
    middle = widths[len(widths) // 2]
    pairs = [(min(1, deepest), width) for width in widths] + [
        (deepest, middle),
        (deepest // 2, widths[-1]),
        (deepest, widths[-1]),
    ]
    parts, errors = [], []
    for context in contexts:
        taken = _times(*_sessions(params, options, widths, context, dynamic), pairs, repeats)
        step, rest, error = _apart(taken[1:], len(widths), deepest, pairs)
        parts.append([step, taken[0], *rest])
        errors.append(error)
    step, plain, *rest = np.transpose(parts)
    about = {
        "model": options.target,
        "drafter": options.drafter,
        "builder": builder_of(params, options),
        "width": options.width,
        "steps": deepest,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "dtype": str(params.dtype),
        "error": round(float(max(errors)), 4),
    }
    return RoundTimes(widths, np.asarray(contexts, np.float64), step, np.array(rest), plain, about)


def _apart(taken: np.ndarray, widths: int, deepest: int, pairs) -> tuple[float, np.ndarray, float]:
    """(step, rest [widths], largest relative error of their sums) from the times of `pairs`; the first ones are shallow."""
    shallow, deep, place = taken[:widths], taken[widths:], {rows: i for i, (_, rows) in enumerate(pairs[:widths])}
    step = 0.0
    if deepest > 1:
        slopes = [
            (time - shallow[place[rows]]) / (deepest - 1)
            for time, (depth, rows) in zip(deep, pairs[widths:], strict=True)
            if depth == deepest
        ]
        step = max(float(np.mean(slopes)), 0.0)
    rest = np.maximum(shallow - step * pairs[0][0], 1e-9)
    predicted = np.array([rest[place[rows]] + step * depth for depth, rows in pairs])
    return step, rest, float(np.max(np.abs(predicted / taken - 1)))


def _sessions(params, options: RecordOptions, widths, context: int, dynamic: bool):
    """Sessions of plain decoding and of drafting."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, params.spec.target.vocab_size, context).tolist()
    room = (ROUNDS + 1) * (options.sizes[-1] + 1)
    drafting = decode_options(params, options) | {"policy": make_static(1 if dynamic else None, widths[-1], widths=widths)}
    return tuple(
        api._prepare(params, prompt, max_new_tokens=room, ignore_eos=True, **settings)
        for settings in ({"method": "ar"}, drafting)
    )


def _times(plain, drafting, pairs: Sequence[tuple[int, int]], repeats: int) -> np.ndarray:
    """Median seconds of a round of plain decoding and of each (steps, rows): float64 [1 + pairs]."""
    samples = np.zeros((repeats, 1 + len(pairs)))
    controls = [Constants(*map(jnp.int32, pair)) for pair in pairs]
    with api._precision(drafting):
        starts = [jax.block_until_ready(api._prefill(session)) for session in (plain, drafting)]
        for repeat in range(-1, repeats):  # the first turn compiles
            for i, control in enumerate((None, *controls)):
                session, start = (plain, starts[0]) if control is None else (drafting, starts[1])
                request = session.request.replace(controls=control)
                state = jax.block_until_ready(jax.tree.map(jnp.copy, start))
                began = time.perf_counter()
                state = jax.block_until_ready(run(session.params, request, state, jnp.int32(ROUNDS), config=session.config))
                if repeat >= 0:
                    samples[repeat, i] = (time.perf_counter() - began) / max(int(jnp.max(state.rounds)), 1)
    return np.median(samples, axis=0)


@dataclasses.dataclass
class TimesOptions:
    """Options of the measurement.

    Attributes:
      rounds: as of the record that the times are for; its prompts and lengths are not read.
      contexts: cached tokens to measure at; None: 64, 256, 1,024, … as far as the model goes.
      repeats: samples of each time.
    """

    rounds: RecordOptions
    contexts: tuple[int, ...] | None = None
    repeats: int = 7


def main(options: TimesOptions) -> None:
    """Measure, print and write to `options.rounds.out`."""
    rounds = options.rounds
    params = jaxspec.load(rounds.target, drafter=rounds.drafter, dtype=rounds.dtype)
    times = measure_times(params, rounds, contexts=options.contexts, repeats=options.repeats)
    save_times(times, rounds.out)
    for i, context in enumerate(times.contexts):
        parts = " ".join(f"{width}:{1e3 * times.rest[j, i]:.3f}" for j, width in enumerate(times.widths))
        plain, step = 1e3 * times.plain[i], 1e3 * times.step[i]
        print(f"{context:.0f} cached: plain {plain:.3f} ms; step {step:.3f} ms; the rest, rows:ms, {parts}")
    print(f"largest relative error of sums {times.about['error']:.1%}; written to {rounds.out}")


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(TimesOptions))
