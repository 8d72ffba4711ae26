"""A reduced draft vocabulary: the tokens that the training data hold most often (EAGLE-3's `d2t`),
and the loss's view of it.

A drafter that proposes a few thousand of the target's tokens saves most of the output projection,
and loses only what it would have drafted of the others. Verification is untouched, so the text
stays the target's own.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxspec.core.params import Params
from training.packing import PackedRows


def frequent_ids(
    rows: PackedRows, size: int, vocab_size: int, always: Iterable[int] = ()
) -> np.ndarray:
    """The `size` tokens learnt most often, int32 [size] in ascending order; of equals the lower
    ids.

    Args:
      rows: tokens under `loss_mask` are counted. Where fewer than `size` occur, the lowest other
        ids follow.
      size: at most `vocab_size`.
      always: ids that are taken however rare they are, if they occur at all: those that end a text.
    """
    counts = _counts(rows, vocab_size)
    kept = np.isin(np.arange(vocab_size), list(always)) & (counts > 0)
    order = np.lexsort((np.arange(vocab_size), -counts, ~kept))
    return np.sort(order[:size]).astype(np.int32)


def coverage(rows: PackedRows, ids: np.ndarray) -> float:
    """Share of the tokens to learn that are among `ids`."""
    counts = _counts(rows, int(max(rows.tokens.max(), ids.max())) + 1)
    return float(counts[ids].sum() / counts.sum())


def draft_vocabulary(rows: PackedRows, size: int, target: Params) -> dict[str, jax.Array]:
    """The collection `draft` (see `jaxspec.drafters.base`) of a drafter of `size` tokens; says what
    it covers in one line.

    Its output projection is those columns of the target's, and is not trained.
    """
    spec = target.spec
    ids = frequent_ids(rows, size, spec.target.vocab_size, spec.eos)
    tqdm.write(
        f"draft vocabulary: {size:,} of {spec.target.vocab_size:,} tokens, {coverage(rows, ids):.2%} of the tokens to learn"
    )
    weights = target.target["params"]
    head = weights["embedding"][ids].T if spec.target.tie_embeddings else weights["lm_head"][:, ids]
    return {"lm_head": head, "ids": jnp.asarray(ids)}


def slots_of(ids: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Place int32 of each of `tokens` among the ascending `ids`, and whether it is there; else the
    place means nothing.
    """
    place = jnp.minimum(jnp.searchsorted(ids, tokens), len(ids) - 1)
    return place, ids[place] == tokens


def _counts(rows: PackedRows, vocab_size: int) -> np.ndarray:
    return np.bincount(rows.tokens[rows.loss_mask.astype(bool)], minlength=vocab_size)
