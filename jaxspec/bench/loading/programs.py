"""The program that assembles weights on a device, for `pallas_kernels.aot.compile.compile_report`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxspec.io.weights.assemble import write_rows
from pallas_kernels.aot.lower import Program


def make_write_program(
    *,
    array: Sequence[int],
    rows: Sequence[int],
    transpose: bool,
    stored: str = "bfloat16",
    dtype: str = "bfloat16",
) -> Program:
    """Make the program that writes rows of a stored tensor into an array of the tree.

    Args:
      array: shape of the array.
      rows: shape of the rows.
      transpose: whether they are written transposed.
      stored: dtype of the rows.
      dtype: dtype of the array.
    """
    args = (
        jax.ShapeDtypeStruct(tuple(array), dtype),
        jax.ShapeDtypeStruct(tuple(rows), stored),
        jax.ShapeDtypeStruct((len(array),), jnp.int32),
    )
    return Program(write_rows, args, {"transpose": transpose})
