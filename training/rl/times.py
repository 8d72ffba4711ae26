"""Measure the time of rounds on this device, by draft steps and verified rows.

    python -m jaxspec.training.rl.times --out times.json --drafter eagle3

The replay environment uses these times.

See `jaxspec.tuner.calibrate.by_steps`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxspec.costs.files import save_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.tuner.calibrate.by_steps import calibrate_steps

from ..run.command import one_line_errors, parse_with_preset
from .options import RoundOptions, decode_options
from .presets import ROUNDS


@dataclasses.dataclass(kw_only=True)
class TimesOptions(RoundOptions):
    """Options of the measurement, added to those of the record's rounds.

    Attributes:
      out: JSON file to write.
      contexts: numbers of cached tokens to measure at; None takes 64, 256, 1,024, … up to the
        model's limit.
      repeats: samples of each time.
    """

    out: Path
    contexts: tuple[int, ...] | None = None
    repeats: int = 7


def times_of(
    params, rounds: RoundOptions, contexts: tuple[int, ...] | None = None, repeats: int = 7
) -> RoundCosts:
    """Measure the times of the recorded rounds."""
    options = {
        name: value
        for name, value in decode_options(params, rounds).items()
        if name not in ("drafter", "budget")
    }
    times = calibrate_steps(
        params, rounds.drafter, rounds.sizes, contexts=contexts, repeats=repeats, **options
    )
    return dataclasses.replace(
        times, about=times.about | {"model": rounds.target, "width": rounds.width}
    )


def main(options: TimesOptions) -> None:
    """Measure the times, print them and write them."""
    params = options.load()
    times = times_of(params, options, options.contexts, options.repeats)
    save_costs(times, options.out)
    for i, context in enumerate(times.contexts):
        parts = " ".join(
            f"{width}:{1e3 * times.verify[0, j, i]:.3f}" for j, width in enumerate(times.widths)
        )
        plain, step = 1e3 * times.plain[i], 1e3 * times.step[i]
        print(
            f"{context:.0f} cached tokens: autoregressive {plain:.3f} ms; "
            f"draft step {step:.3f} ms; the rest of a round, rows:ms, {parts}"
        )
    print(f"largest relative error of the sum {times.about['error']:.1%}; written to {options.out}")


if __name__ == "__main__":
    with one_line_errors():
        main(parse_with_preset(TimesOptions, ROUNDS))
