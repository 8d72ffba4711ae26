"""What devices exchange in a compiled program."""

from __future__ import annotations

import math
import re
from typing import Any

_COLLECTIVE = re.compile(
    r"= (\([^=]*?\)|\S+) "
    r"(all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+?)(?:-start)?\("
)
_ARRAY = re.compile(r"(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


def list_collectives(text: str) -> list[dict[str, Any]]:
    """List the collectives of a compiled program, in the order of its text.

    Args:
      text: from `compiled.as_text()`.

    Returns:
      {"kind", "shape", "bytes"} of each. The shape is that of the result on one device. Collectives
      in a loop or a branch are listed once.
    """
    found = []
    for result, kind in _COLLECTIVE.findall(text):
        # One that only starts here has its operand, too, before its result.
        *_, (dtype, bits, axes) = _ARRAY.findall(result)
        size = math.prod(int(axis) for axis in axes.split(",") if axis)
        found.append(
            {
                "kind": kind,
                "shape": f"{dtype}[{axes}]",
                "bytes": size * (int(bits) if bits else 8) // 8,
            }
        )
    return found
