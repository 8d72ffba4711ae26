"""Weights of one byte, int8 or float8_e4m3fn, with scales of any block."""

from __future__ import annotations

import numpy as np

from jaxspec.io.quantised.matrix import Grid, Matrix, Opened, decode
from jaxspec.io.quantised.module import Module, find_block

KINDS = {"I8": "int8", "F8_E4M3": "fp8"}


def open_one_byte(
    module: Module,
    scale: str,
    block: tuple[int, int] | None = None,
    zero: str | None = None,
) -> Matrix:
    """Read `weight` [out, in] of one byte each.

    Args:
      module: the module.
      scale: suffix of its scales.
      block: (outputs, inputs) that share a scale, see `find_block`.
      zero: suffix of zero points, of the shape of the scales; None: there are none.

    Raises:
      ValueError: a tensor is missing, or has another dtype or shape.
    """
    shape, stored = module.shape(".weight"), module.dtype(".weight")
    if stored not in KINDS or len(shape) != 2:
        raise module.refuse(f"weight is {stored} {list(shape)}, expected {' or '.join(KINDS)} 2-D")
    outputs, inputs = find_block(module, shape, module.shape(scale), block)
    alone = inputs == shape[1] and outputs in (1, shape[0])
    zeros = None if zero is None or not alone else module.read(zero)
    kept = alone and (zeros is None if zero is None else not np.any(zeros))

    def open_() -> Opened:
        scales = module.read_scales(scale)
        grid = scales.reshape(-(-shape[0] // outputs), -1)
        points = None if zero is None else module.read(zero).reshape(grid.shape)
        values = module.reader(".weight")
        rows = decode(values, Grid(grid, points, outputs, inputs))
        if not kept:
            return Opened(rows)
        return Opened(rows, values, np.broadcast_to(scales.reshape(-1), shape[:1]))

    return Matrix(shape, KINDS[stored] if kept else None, open_)
