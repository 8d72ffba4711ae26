"""What rounds take on this machine, by draft steps and rows verified: the clock of the replay environment.

    python -m training.rl.times --rounds.prompts none --rounds.out times.json --rounds.drafter eagle3

See `jaxspec.calibrate_steps`.
"""

from __future__ import annotations

import dataclasses

import jaxspec
from jaxspec.calibrate_steps import measure_times
from jaxspec.policies.round_times import RoundTimes, save_times
from training.command import one_line_errors
from training.rl.record import RecordOptions, decode_options


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


def times_of(params, rounds: RecordOptions, contexts: tuple[int, ...] | None = None, repeats: int = 7) -> RoundTimes:
    """The times of rounds like the recorded ones."""
    options = {name: value for name, value in decode_options(params, rounds).items() if name not in ("method", "budget")}
    times = measure_times(params, rounds.drafter, rounds.sizes, contexts=contexts, repeats=repeats, **options)
    return dataclasses.replace(times, about=times.about | {"model": rounds.target, "width": rounds.width})


def main(options: TimesOptions) -> None:
    """Measure, print and write to `options.rounds.out`."""
    rounds = options.rounds
    params = jaxspec.load(rounds.target, drafter=rounds.drafter, dtype=rounds.dtype)
    times = times_of(params, rounds, options.contexts, options.repeats)
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
