"""MXFP4: FP4 numbers in blocks of 32, each with a power of two as its scale.

Stacks of experts are stored as `*_blocks` uint8 [experts, out, in / 32, 16] and `*_scales` uint8
[experts, out, in / 32], and read as [experts, in, out], which is how transformers writes them in
full. Sources: OCP Microscaling Formats 1.0; transformers, `integrations/mxfp4.py`; ggml,
`block_mxfp4`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.io.quantised.bits import E8M0_BIAS, FP4, unpack_fp4
from jaxspec.io.quantised.matrix import Matrix, Opened
from jaxspec.io.quantised.module import Format, Module

BLOCK = 32


def decode_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode blocks whose bytes hold neighbours, the first in the low bits.

    A scale byte of 255 is 2**128 and not NaN, as in transformers and ggml: numbers above a half
    are then infinite.

    Args:
      blocks: uint8 [..., G, 16].
      scales: uint8 [..., G].

    Returns:
      float32 [..., 32 G].
    """
    return _scale(unpack_fp4(blocks), scales)


def decode_ggml_mxfp4(stored: np.ndarray) -> np.ndarray:
    """Decode ggml's blocks: a scale, then bytes with numbers 0 to 15 low and 16 to 31 high.

    Args:
      stored: uint8 [..., 17 G].

    Returns:
      float32 [..., 32 G].
    """
    blocks = stored.reshape(*stored.shape[:-1], -1, 17)
    codes = blocks[..., 1:]
    return _scale(np.concatenate([FP4[codes & 15], FP4[codes >> 4]], axis=-1), blocks[..., 0])


def _scale(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Scale numbers [..., G, 32] to [..., 32 G]."""
    with np.errstate(over="ignore"):
        found = np.ldexp(numbers, scales.astype(np.int32)[..., None] - E8M0_BIAS)
    return found.reshape(*found.shape[:-2], -1)


def _open(settings: Mapping[str, Any], module: Module) -> Matrix:
    shape = module.shape("_blocks")
    if len(shape) != 4:
        raise module.refuse(f"_blocks {list(shape)} has not the axes [experts, out, in / 32, 16]")
    experts, outputs, groups, _ = shape
    module.check("_blocks", ("U8",), (experts, outputs, groups, BLOCK // 2))
    module.check("_scales", ("U8",), (experts, outputs, groups))

    def open_() -> Opened:
        blocks, scales = module.reader("_blocks"), module.reader("_scales")
        size = outputs * groups

        def rows(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            own = np.empty((stop - start) * size, np.uint8)
            found = decode_mxfp4(blocks(start, stop, memory), scales(start, stop, own))
            return found.swapaxes(-1, -2)

        return Opened(rows)

    return Matrix((experts, BLOCK * groups, outputs), None, open_)


MXFP4 = Format(
    "mxfp4",
    marks=("_blocks",),
    reads=("_blocks", "_scales"),
    open=_open,
    becomes="",
)
