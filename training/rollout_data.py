"""Batches of rollouts for drafters, a pure function of the step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from training.data import DataError

ARRAYS = ("tokens", "features", "hidden", "prompt", "end", "domain", "temperature")


class Rollouts:
    """The shards that `training.rollouts` wrote, memory-mapped.

    Attributes:
      meta: meta.json: feature_layers, domains, eos, length.
      rows: sequences in all.
    """

    def __init__(self, folder: Path, skip: int = 0, limit: int | None = None):
        """Shards `skip`, `skip` + 1, … of `folder`, at most `limit` of them."""
        paths = sorted(folder.glob("shard-???"))[skip:][:limit]
        if not paths:
            raise DataError(f"no rollouts in {folder}: make them with python -m training.rollouts")
        self.meta = json.loads((folder / "meta.json").read_text())
        self.shards = [{name: np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS} for path in paths]
        self.size = len(self.shards[0]["tokens"])
        self.rows = self.size * len(self.shards)

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Arrays by name of the sequences `rows`."""
        places = [divmod(int(row), self.size) for row in rows]
        return {name: np.stack([self.shards[shard][name][index] for shard, index in places]) for name in ARRAYS}


class AnchorBatches:
    """`batches(step)`: sequences in a fresh order every epoch, each with random anchors.

    Args:
      rollouts: the sequences.
      rows: sequences in a batch.
      anchors: anchors of each sequence, drawn from its generated part (the last prompt token included), with repetition.
      seed: of order and anchors.
    """

    def __init__(self, rollouts: Rollouts, rows: int, anchors: int, seed: int):
        if rows > rollouts.rows:
            raise DataError(f"a batch of {rows} sequences needs more than the {rollouts.rows} rollouts there are")
        self.rollouts, self.rows, self.anchors, self.seed = rollouts, rows, anchors, seed

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        """tokens int32 [B, S], features [B, S - 1, F], hidden [B, S - 1, E], loss_mask [B, S], anchors int32 [B, A]."""
        per_epoch = self.rollouts.rows // self.rows
        epoch, index = divmod(step, per_epoch)
        order = np.random.default_rng((self.seed, 0, epoch)).permutation(self.rollouts.rows)
        found = self.rollouts.take(np.sort(order[index * self.rows : (index + 1) * self.rows]))
        generator = np.random.default_rng((self.seed, 1, step))
        first = found["prompt"][:, None] - 1
        anchors = generator.integers(first, np.maximum(found["end"][:, None] - 1, first + 1), (self.rows, self.anchors))
        return make_batch(found, anchors.astype(np.int32))


def make_batch(found: dict[str, np.ndarray], anchors: np.ndarray) -> dict[str, np.ndarray]:
    """What the drafter's loss reads, from sequences and their anchors."""
    positions = np.arange(found["tokens"].shape[1])
    learnt = (positions >= found["prompt"][:, None]) & (positions < found["end"][:, None])
    return {
        "tokens": found["tokens"].astype(np.int32),
        "features": found["features"],
        "hidden": found["hidden"],
        "loss_mask": learnt.astype(np.float32),
        "anchors": anchors,
    }
