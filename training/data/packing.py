"""Pack samples of any length into rows of one length, without leakage between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from .documents import DataError
from .samples import Sample


class PackedRows(NamedTuple):
    """R rows of S tokens, each holding whole documents one after the other, then padding.

    Attributes:
      tokens: int32 [R, S]; 0 in the padding.
      segments: int32 [R, S]; 1 for a row's first document, 2 for its second, …, 0 for padding.
        Tokens of different segments must not attend to each other.
      positions: int32 [R, S]; from 0 in each document.
      loss_mask: bool [R, S]; True for tokens to be predicted.
    """

    tokens: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    loss_mask: np.ndarray

    @property
    def efficiency(self) -> float:
        """Share of the rows that is not padding."""
        return float((self.segments > 0).mean())


def cut_sample(
    sample: Sample, length: int, long: Literal["auto", "split", "truncate"] = "auto"
) -> list[Sample]:
    """Cut a sample into pieces of at most `length` tokens; drop pieces without a token to predict.

    `split` keeps all of the text: each piece begins at position 0, like a document. This suits
    plain text, which can begin anywhere. An answer without its prompt, however, is a context that
    never occurs in decoding, so `truncate` keeps only the beginning. `auto`
    splits samples that are trained on as a whole and truncates the others.
    """
    if long == "auto":
        long = "split" if sample.loss_mask.all() else "truncate"
    starts = range(0, len(sample.tokens), length) if long == "split" else (0,)
    pieces = [
        sample._replace(
            tokens=sample.tokens[start : start + length],
            loss_mask=sample.loss_mask[start : start + length],
        )
        for start in starts
    ]
    return [piece for piece in pieces if piece.loss_mask[1:].any()]


def first_fit(sizes: Sequence[int], capacity: int) -> list[int]:
    """Assign each item to the first row with room for it.

    A tournament tree over the rows' free space makes this O(n log n). grain's
    `FirstFitPackIterDataset` gives the same rows with enough bins, but tries every bin for every
    item: six times as long for 20,000 samples, and quadratic from there.

    Args:
      sizes: at most `capacity` each.
      capacity: of a row.

    Returns:
      The row of each item.
    """
    leaves = 1 << max(len(sizes) - 1, 0).bit_length()
    free = [capacity] * (2 * leaves)
    rows = []
    for size in sizes:
        node = 1
        while node < leaves:
            node = 2 * node if free[2 * node] >= size else 2 * node + 1
        rows.append(node - leaves)
        free[node] -= size
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return rows


def pack_rows(samples: Sequence[Sample], length: int) -> PackedRows:
    """Pack samples into rows of `length` tokens, by first fit in the order given.

    The same samples always give the same rows.

    Raises:
      DataError: there are no samples, or one is longer than `length` (see `cut_sample`).
    """
    if not samples:
        raise DataError("there are no samples to pack")
    sizes = [len(sample.tokens) for sample in samples]
    if max(sizes) > length:
        where = samples[sizes.index(max(sizes))].place
        raise DataError(
            f"{where}: {max(sizes)} tokens do not fit into a row of {length}: cut the samples first"
        )
    rows = first_fit(sizes, length)
    count = max(rows) + 1
    packed = PackedRows(
        *(np.zeros((count, length), dtype) for dtype in (np.int32, np.int32, np.int32, bool))
    )
    used, documents = [0] * count, [0] * count
    for sample, row, size in zip(samples, rows, sizes, strict=True):
        place = slice(used[row], used[row] + size)
        used[row] += size
        documents[row] += 1
        packed.tokens[row, place] = sample.tokens
        packed.segments[row, place] = documents[row]
        packed.positions[row, place] = np.arange(size)
        packed.loss_mask[row, place] = sample.loss_mask
    return packed
