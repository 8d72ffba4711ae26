"""What rounds take by draft steps, rows verified and context: sums of parts that were measured, see
`jaxspec.bench.calibrate_steps`.

Unlike a `LatencyTable`, which a controller of rows reads on the device, these times tell the steps
of a growing tree apart. They are read on the host, by whatever replays rounds.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxspec.policies.store import fingerprint

ARRAYS = ("contexts", "step", "rest", "plain")


@dataclasses.dataclass(frozen=True)
class RoundTimes:
    """Seconds of a round's parts; W widths, C context lengths, both ascending.

    Attributes:
      widths: rows that verification is compiled for. contexts: [C], cached tokens.
      step: [C], every draft step after the root's. rest: [W, C], all else: the root's proposal, the
        tree, verification, acceptance, commit and what the drafter absorbs. plain: [C], a round of
        plain decoding.
      about: what they are of: device, model, drafter and so on; with `error`, the largest relative
        one of the sum.
    """

    widths: tuple[int, ...]
    contexts: np.ndarray
    step: np.ndarray
    rest: np.ndarray
    plain: np.ndarray
    about: dict

    @property
    def fingerprint(self) -> str:
        """Tells these times from others, see `store.fingerprint`."""
        return fingerprint((self.contexts, self.step, self.rest))

    def seconds(self, context, steps: int, sizes: Sequence[int]) -> np.ndarray:
        """float32 [N, steps + 1, V], of rounds at `context` [N] with 0 to `steps` draft steps that
        verify `sizes` rows.

        Linear between the measured contexts and flat beyond; a size is charged the smallest width
        that holds it.
        """
        step, rest = (
            np.interp(context, self.contexts, self.step),
            self._rest(context)[:, self._at(sizes)],
        )
        drafted = step[:, None] * np.arange(steps + 1)
        return (drafted[:, :, None] + rest[:, None]).astype(np.float32)

    def of_rounds(self, context, steps, rows) -> np.ndarray:
        """float64 [R], of rounds with these draft steps (-1: a round of plain decoding) and rows,
        int [R] each.
        """
        context, steps = np.asarray(context), np.asarray(steps)
        rest = self._rest(context)[np.arange(len(context)), self._at(rows)]
        drafted = np.interp(context, self.contexts, self.step) * steps + rest
        return np.where(steps < 0, np.interp(context, self.contexts, self.plain), drafted)

    def _rest(self, context) -> np.ndarray:
        return np.stack([np.interp(context, self.contexts, times) for times in self.rest], axis=-1)

    def _at(self, sizes) -> np.ndarray:
        if np.max(sizes, initial=1) > self.widths[-1]:
            raise ValueError(
                f"times reach {self.widths[-1]} rows, not {np.max(sizes)}: measure with these sizes"
            )
        return np.searchsorted(self.widths, sizes)


def save_times(times: RoundTimes, path: str | os.PathLike) -> None:
    """Write times as JSON."""
    arrays = {name: np.asarray(getattr(times, name)).tolist() for name in ("widths", *ARRAYS)}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"about": times.about, **arrays}, indent=1) + "\n")


def load_times(path: str | os.PathLike) -> RoundTimes:
    """Read times of `save_times`.

    Raises:
      FileNotFoundError: no such file. ValueError: it holds no such times.
    """
    try:
        found = json.loads(Path(path).read_text())
        arrays = {name: np.asarray(found[name], np.float64) for name in ARRAYS}
        return RoundTimes(tuple(found["widths"]), about=found["about"], **arrays)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} holds no times of rounds ({error!r}): measure them again"
        ) from None
