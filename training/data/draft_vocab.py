"""A reduced draft vocabulary: the most frequent tokens of the training data (EAGLE-3's `d2t`).

A drafter that proposes a few thousand of the target's tokens saves most of the output projection,
and never drafts the others. Verification does not change, so the output stays the target's own.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxspec.core.params import Params
from jaxspec.targets.head import select_columns

from .packing import PackedRows


def find_frequent_ids(
    rows: PackedRows, size: int, vocab_size: int, always: Iterable[int] = ()
) -> np.ndarray:
    """Find the `size` most frequent tokens: int32 [size] ids, ascending.

    Args:
      rows: tokens under `loss_mask` are counted. If fewer than `size` tokens occur, the lowest
        other ids are added. Ties go to the lower id.
      size: at most `vocab_size`.
      vocab_size: of the target.
      always: ids to include if they occur at all: those that end a sequence.
    """
    counts = _counts(rows, vocab_size)
    kept = np.isin(np.arange(vocab_size), list(always)) & (counts > 0)
    order = np.lexsort((np.arange(vocab_size), -counts, ~kept))
    return np.sort(order[:size]).astype(np.int32)


def measure_coverage(rows: PackedRows, ids: np.ndarray) -> float:
    """Compute the share of the tokens to train on that are among `ids`."""
    counts = _counts(rows, int(max(rows.tokens.max(), ids.max())) + 1)
    return float(counts[ids].sum() / counts.sum())


def make_draft_vocabulary(rows: PackedRows, size: int, target: Params) -> dict[str, jax.Array]:
    """Make the collection `draft` (see `jaxspec.drafters.base`) of a drafter with `size` tokens.

    Its output projection consists of the target's columns, and is not trained. Prints one line with
    the share of tokens that it covers.
    """
    spec = target.spec
    ids = find_frequent_ids(rows, size, spec.target.vocab_size, spec.eos)
    tqdm.write(
        f"draft vocabulary: {size:,} of {spec.target.vocab_size:,} tokens, "
        f"{measure_coverage(rows, ids):.2%} of the tokens to predict"
    )
    return {"lm_head": select_columns(target.target, spec.target, ids), "ids": jnp.asarray(ids)}


def find_slots(ids: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the index int32 of each token among the ascending `ids`.

    Returns:
      Indices, and whether the token is there; if not, its index has no meaning.
    """
    place = jnp.minimum(jnp.searchsorted(ids, tokens), len(ids) - 1)
    return place, ids[place] == tokens


def _counts(rows: PackedRows, vocab_size: int) -> np.ndarray:
    return np.bincount(rows.tokens[rows.loss_mask.astype(bool)], minlength=vocab_size)
