"""The record of a layout: how a matrix of weights lies in memory, and how it is multiplied so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax


class Layout(NamedTuple):
    """A way in which matrices of weights may lie.

    A model's variables hold the weights under "params", and what a layout adds in a collection of
    its own, under the same names. A layout of copies leaves the weights as they are, and products
    of other numbers of rows read them; any other layout replaces them, as by values of one byte.

    Attributes:
      name: what records and files of costs call it.
      collection: name of the collection of what it adds.
      owns: (weights or None, added) -> whether arrays of the collection are of this layout.
      arrange: (weights [..., in, out] or [..., out, in], its input axis, -2 or -1) -> (what
        "params" holds, what the collection holds).
      multiply: (x [..., in], weights, added, input axis) -> [..., out] in x's dtype.
      copies: whether what it adds is a second copy of the weights.
      rows: numbers of rows of x that it serves; None: any.
      side_by_side: outputs that lie side by side in it; it serves multiples of so many outputs.
      per_output: whether what it adds has an entry for each output, and no input axis.
      converts: whether products convert the weights as they read them.
      whole: whether a product cannot be left in parts, and the weights have another shape than
        the model says.
    """

    name: str
    collection: str
    owns: Callable[[jax.Array | None, jax.Array], bool]
    arrange: Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]
    multiply: Callable[[jax.Array, jax.Array, jax.Array, int], jax.Array]
    copies: bool = False
    rows: range | None = None
    side_by_side: int = 1
    per_output: bool = False
    converts: bool = False
    whole: bool = False

    def serves(self, rows: int) -> bool:
        """Whether products of so many rows read what this layout adds."""
        return self.rows is None or rows in self.rows
