"""Keep earlier answers for suffix decoding: one array of fixed length, which all requests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params

NAME = "suffix"
# Stands between answers, and matches no token.
_END = -1


def remember(
    params: Params,
    answers: Iterable[Sequence[int]],
    size: int | None = None,
    name: str = NAME,
) -> Params:
    """Return `params` whose suffix drafter also looks in earlier answers.

    The newest answers are kept, as many as fit; equal sizes compile once. What is kept changes the
    speed of later calls, and no text.

    Args:
      answers: token ids of each, such as `Output.tokens`, oldest first.
      size: tokens to keep, with one more per answer (None: as many as before, or 65,536).
      name: of the drafter.

    Raises:
      ValueError: the size is below 2.
    """
    before = np.asarray(params.drafter(name).get("store", {}).get("token", ()), np.int32)
    size = size or len(before) or 2**16
    if size < 2:
        raise ValueError(f"size is {size}: give at least 2 tokens")
    parts: list[Any] = [before]
    for answer in answers:
        parts += [np.asarray(answer, np.int32), np.array([_END], np.int32)]
    kept = np.concatenate(parts)[-size:]
    token = np.pad(kept, (size - len(kept), 0), constant_values=_END)
    return params.replace(
        drafters={**params.drafters, name: {"store": {"token": jnp.asarray(token)}}}
    )


def forget(params: Params, name: str = NAME) -> Params:
    """Undo `remember`: drop all that was kept."""
    return params.replace(
        drafters={key: value for key, value in params.drafters.items() if key != name}
    )
