"""How long the paths of one decode call may be."""

from __future__ import annotations

from typing import Any

from jaxspec.drafters.registry import record_of

_LONGEST = 127


def resize_drafter(config: Any, method: str, depth: int | None, given_as: str = "depth") -> Any:
    """The config of the drafter called `method` with the length of paths that a call asks for.

    Args:
      depth: longest drafted path, in tokens; None: the drafter's own.
      given_as: the option by which the caller gave it, `depth` or `block_size` (`depth` + 1 slots,
        the anchor included).

    Raises:
      ValueError: the option is not the one of this drafter, or the length is out of range.
    """
    if depth is None:
        return config
    record = record_of(config)
    if record.blocks and given_as == "depth":
        raise ValueError(f"depth is for drafters that work in steps: give {method!r} a block_size")
    if not record.blocks and given_as == "block_size":
        raise ValueError(
            f"block_size is for block drafters: leave it out with {method!r}, or give depth"
        )
    if record.blocks and not 1 <= depth <= _LONGEST:
        raise ValueError(
            f"block_size is {depth + 1}: give 2 to {_LONGEST + 1}, anchor included "
            f"({config.depth + 1} trained)"
        )
    if not 1 <= depth <= _LONGEST + 1:
        raise ValueError(f"depth is {depth}: give 1 to {_LONGEST + 1} drafted tokens")
    return record.resize(config, depth)
