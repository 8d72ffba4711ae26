"""Recorded rounds: a drafter's proposals at every position of texts, and what they would commit.

Greedy text is unique, and a drafter's proposal at a position does not depend on where earlier
rounds began. One record therefore replays, without a model, every round that any policy could run
on these texts.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.files.atomic import replacing

from ..data.splits import HELD_OUT, mark_held_out


@dataclasses.dataclass(frozen=True)
class Record:
    """N positions of the texts of Q prompts, text after text.

    Attributes:
      header: describes the rounds: model, drafter, builder; `sees` ("pool" or "tree"), `width`,
        `steps`, `sizes` and `score_scale` as in `LtdConfig`; `domains`, one name per prompt.
      scores: float16 [N, P], path log-probabilities at the scale `score_scale`: of the pool at full
        depth, or of the sorted tree's rows without the root.
      committed: int8 [N, S, V], tokens that a round commits here with s draft steps after the
        root's (S = 1 for trees that do not grow in steps) and sizes[v] rows, at most `remaining`.
      context: int32 [N], cached tokens.
      remaining: int32 [N], tokens of the text after the root.
      prompt: int32 [N], number of the prompt, ascending.
      order: int16 [N, P], the candidates in the order of the tree's rows, by its own scores.
      entropy: float16 [N, S, W], nats; None unless it was asked for, see `figures.find_figures`.
      hidden: float16 [N, S, E], the drafter's hidden state; likewise.
    """

    header: dict
    scores: np.ndarray
    committed: np.ndarray
    context: np.ndarray
    remaining: np.ndarray
    prompt: np.ndarray
    order: np.ndarray
    entropy: np.ndarray | None = None
    hidden: np.ndarray | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.header["sizes"])

    @property
    def steps(self) -> int:
        """Maximum draft steps after the root's."""
        return self.committed.shape[1] - 1

    def round_seconds(self, costs: RoundCosts) -> np.ndarray:
        """Compute the seconds of every possible round: float32 [N, S, V], S = steps + 1."""
        steps = np.arange(self.steps + 1)[:, None]
        rows = np.asarray(self.sizes)
        context = self.context[:, None, None]
        return costs.seconds(context, rows=rows, steps=steps).astype(np.float32)

    def first(self) -> np.ndarray:
        """Find each prompt's first position: int32 [Q]; prompts without positions are left out."""
        return np.flatnonzero(np.diff(self.prompt, prepend=-1)).astype(np.int32)

    def select(self, prompts) -> Record:
        """Keep the positions of some prompts, by number."""
        keep = np.isin(self.prompt, np.asarray(list(prompts)))
        return Record(self.header, **{name: x[keep] for name, x in self.arrays().items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {name: array for name, array in found.items() if array is not None}

    def domain(self, name: str) -> Record:
        """Keep the positions of one domain's prompts."""
        return self.select(
            number for number, domain in enumerate(self.header["domains"]) if domain == name
        )


def split_records(record: Record, every: int = HELD_OUT) -> tuple[Record, Record]:
    """Split a record by prompt into (training, validation), see `training.data.splits.mark_held_out`.

    Args:
      record: to split.
      every: each domain's `every`-th prompt is for validation.

    Raises:
      ValueError: one of the two parts would be empty.
    """
    held = mark_held_out(record.header["domains"], every)
    parts = record.select(np.flatnonzero(~held)), record.select(np.flatnonzero(held))
    if not all(len(part.context) for part in parts):
        raise ValueError(
            f"{len(held)} prompts cannot be split: record at least {every} prompts of a domain"
        )
    return parts


def save_record(record: Record, path: Path) -> None:
    """Write a record as a .npz file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(record.header)), **record.arrays())


def load_record(path: Path) -> Record:
    """Read a record that `save_record` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is no record, or does not name the scale of its scores.
    """
    try:
        with np.load(path) as arrays:
            header = json.loads(str(arrays["header"]))
            if "score_scale" in header:
                names = [name for name in arrays.files if name != "header"]
                return Record(header, **{name: arrays[name] for name in names})
    except (KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path} is no record of rounds ({error}): make one with python -m jaxspec.training.rl.record"
        ) from None
    raise ValueError(
        f"{path} is from before records kept the scale of their scores: "
        "record the rounds again with python -m jaxspec.training.rl.record"
    )
