"""Recorded rounds: what a drafter proposed at every position of texts, and what each depth and size
would have committed.

Greedy text is unique, and what a drafter proposes at a position does not depend on how the rounds
before it were cut. One record therefore replays every round that any policy could have had on these
texts, without a model.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from training.splits import HELD_OUT, mark_held_out


@dataclasses.dataclass(frozen=True)
class Record:
    """N positions of the texts of Q prompts, one after the other.

    Attributes:
      header: what it is of: model, drafter, builder; `sees` ("pool" or "tree"), `width`, `steps`,
        `sizes` as of `LtdConfig`; `domains`, one name a prompt.
      scores: float16 [N, P], path log-probabilities: of the pool at full depth, or of the sorted
        tree's rows but the root.
      committed: int8 [N, S, V], tokens of a round from here with s draft steps after the root's (S
        = 1 for trees that do not grow in steps) and sizes[v] rows, never more than `remaining`.
      context: int32 [N], cached tokens. remaining: int32 [N], tokens of the text after the root.
      prompt: int32 [N], ascending; a text's positions follow each other.
    """

    header: dict
    scores: np.ndarray
    committed: np.ndarray
    context: np.ndarray
    remaining: np.ndarray
    prompt: np.ndarray

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.header["sizes"])

    @property
    def steps(self) -> int:
        """Most draft steps after the root's."""
        return self.committed.shape[1] - 1

    def round_seconds(self, costs: RoundCosts) -> np.ndarray:
        """Seconds of every round that could start here: float32 [N, S, V], S = steps + 1."""
        steps = np.arange(self.steps + 1)[:, None]
        rows = np.asarray(self.sizes)
        context = self.context[:, None, None]
        return costs.seconds(context, rows=rows, steps=steps).astype(np.float32)

    def first(self) -> np.ndarray:
        """int32 [Q], each prompt's first position; prompts without any are left out."""
        return np.flatnonzero(np.diff(self.prompt, prepend=-1)).astype(np.int32)

    def select(self, prompts) -> Record:
        """The positions of some prompts, by number."""
        keep = np.isin(self.prompt, np.asarray(list(prompts)))
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return Record(self.header, **{name: array[keep] for name, array in arrays.items()})

    def domain(self, name: str) -> Record:
        """The positions of one domain's prompts."""
        return self.select(
            number for number, domain in enumerate(self.header["domains"]) if domain == name
        )


def split_records(record: Record, every: int = HELD_OUT) -> tuple[Record, Record]:
    """(training, validation), by `training.splits.mark_held_out`.

    Raises:
      ValueError: one of the two would be empty.
    """
    held = mark_held_out(record.header["domains"], every)
    parts = record.select(np.flatnonzero(~held)), record.select(np.flatnonzero(held))
    if not all(len(part.context) for part in parts):
        raise ValueError(
            f"{len(held)} prompts cannot be split: record at least {every} of a domain"
        )
    return parts


def save_record(record: Record, path: Path) -> None:
    """Write a record as .npz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)[1:]}
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(record.header)), **arrays)


def load_record(path: Path) -> Record:
    """Read a record of `save_record`.

    Raises:
      FileNotFoundError: no such file. ValueError: it is no record.
    """
    try:
        with np.load(path) as arrays:
            names = [field.name for field in dataclasses.fields(Record)[1:]]
            return Record(
                json.loads(str(arrays["header"])), **{name: arrays[name] for name in names}
            )
    except (KeyError, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path} is no record of rounds ({error}): make one with python -m training.rl.record"
        ) from None
