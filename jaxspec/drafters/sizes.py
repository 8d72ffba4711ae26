"""Choose how long the drafted paths of a decode call may be."""

from __future__ import annotations

import warnings
from typing import Any

from jaxspec.drafters.registry import make_drafter, record_of

_LONGEST = 128


def choose_depth(
    config: Any, method: str, *, depth: int | None = None, block_size: int | None = None
) -> int | None:
    """Choose the longest path, in tokens, that a call of the drafter called `method` drafts.

    Args:
      depth: the caller's `depth`, or None.
      block_size: the caller's `block_size`, or None; a block holds the anchor and `depth` tokens.

    Returns:
      The length; None (the drafter's default) if the caller gave neither.

    Raises:
      ValueError: this drafter does not take the option, or the length is out of range.
    """
    blocks = record_of(config).blocks
    if blocks and depth is not None:
        raise ValueError(f"depth is for drafters that work in steps: give {method!r} a block_size")
    if not blocks and block_size is not None:
        raise ValueError(
            f"block_size is for block drafters: leave it out with {method!r}, or give depth"
        )
    if block_size is not None and not 2 <= block_size <= _LONGEST:
        raise ValueError(
            f"block_size is {block_size}: give 2 to {_LONGEST}, anchor included "
            f"({config.depth + 1} trained)"
        )
    if block_size is not None and block_size > config.depth + 1:
        # The authors' code allows longer blocks, and their traces contain some.
        warnings.warn(
            f"block_size is {block_size}, and {method!r} was trained for {config.depth + 1}: later "
            f"slots are rarely accepted; give at most {config.depth + 1}",
            stacklevel=2,
        )
    if depth is not None and not 1 <= depth <= _LONGEST:
        raise ValueError(f"depth is {depth}: give 1 to {_find_longest(config)} drafted tokens")
    return depth if block_size is None else block_size - 1


def _find_longest(config: Any) -> int:
    """Return the longest path of a drafter without blocks: only one with steps can add some."""
    drafter = make_drafter(config)
    return drafter.depth if drafter.expand is None else _LONGEST
