"""AWQ's `gemm` layout: four bits a weight, with a scale and a zero point for each group of inputs.

`qweight` int32 [in, out / 8] and `qzeros` int32 [groups, out / 8] hold eight outputs a word, in the
order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on; `scales` float16 [groups, out]. Source:
AutoAWQ 0.2.9, `awq/utils/packing_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.io.quantised.matrix import Grid, Groups, Matrix, Opened, decode
from jaxspec.io.quantised.module import Format, Module

_FLOATS = ("F16", "BF16", "F32")
# The outputs that a word holds, from the lowest bits on.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _check(settings: Mapping[str, Any]) -> None:
    layout = settings.get("version", settings.get("format", "gemm"))
    if str(layout).lower() != "gemm":
        raise ValueError(
            f"config.json: AWQ's layout {layout!r} is not read: use a checkpoint with version "
            "'gemm'"
        )
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits != 4:
        raise ValueError(f"config.json: AWQ with {bits} bits is not read: use one with 4")


def _open(settings: Mapping[str, Any], module: Module) -> Matrix:
    words, groups = module.shape(".qweight"), module.shape(".scales")[0]
    if len(words) != 2 or not groups or words[0] % groups:
        raise module.refuse(f"qweight {list(words)} does not divide into {groups} groups")
    inputs, outputs = words[0], 8 * words[1]
    module.check(".qweight", ("I32",), words)
    module.check(".qzeros", ("I32",), (groups, words[1]))
    module.check(".scales", _FLOATS, (groups, outputs))

    def open_() -> Opened:
        packed = np.ascontiguousarray(module.read(".qweight").T)

        def codes(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            first = start // 8
            found = _unpack(packed[first : -(-stop // 8)])
            return found[start - 8 * first : stop - 8 * first]

        zero, scale = _unpack(module.read(".qzeros").T), module.read_scales(".scales").T
        grid = Grid(scale, zero, inputs=inputs // groups)
        return Opened(decode(codes, grid), codes=codes, grid=grid)

    size = Groups(inputs // groups, module.scale_dtype(".scales"))
    return Matrix((outputs, inputs), None, open_, size)


def _unpack(words: np.ndarray) -> np.ndarray:
    """Unpack words int32 [W, in] to uint8 [8W, in]."""
    count, inputs = words.shape
    stored = np.ascontiguousarray(words).view(np.uint8).reshape(count, inputs, 4)
    values = np.empty((count, 8, inputs), np.uint8)
    for place, output in enumerate(_ORDER):
        np.right_shift(stored[..., place // 2], place % 2 * 4, out=values[:, output])
    values &= 15
    return values.reshape(8 * count, inputs)


AWQ = Format(
    "awq",
    marks=(".qweight",),
    reads=(".qweight", ".qzeros", ".scales"),
    open=_open,
    check=_check,
)
