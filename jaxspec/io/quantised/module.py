"""The stored tensors of one module, and the record of a format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import FLOAT_DTYPES, RowReader
from jaxspec.io.quantised.bits import power_of_two
from jaxspec.io.quantised.matrix import Matrix


class Module(NamedTuple):
    """The stored tensors whose names begin alike, by what follows.

    Attributes:
      files: the checkpoint.
      stem: how the names begin, for example `model.layers.0.mlp.up_proj`.
    """

    files: WeightFiles
    stem: str

    def has(self, suffix: str) -> bool:
        """Whether there is such a tensor."""
        return self.stem + suffix in self.files

    def shape(self, suffix: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.files.shape(self._find(suffix))

    def dtype(self, suffix: str) -> str:
        """Return a tensor's dtype in safetensors' words."""
        return self.files.stored_dtype(self._find(suffix))

    def read(self, suffix: str) -> np.ndarray:
        """Read a tensor as it is stored."""
        name = self._find(suffix)
        rows = self.shape(suffix)[0] if self.shape(suffix) else 1
        size = self.files.size(name)
        return self.files.stored_reader(name)(0, rows, np.empty(size, np.uint8))

    def reader(self, suffix: str) -> RowReader:
        """Return a function that reads some rows of a tensor as they are stored."""
        return self.files.stored_reader(self._find(suffix))

    def read_scales(self, suffix: str) -> np.ndarray:
        """Read scales as float32; bytes are exponents (E8M0)."""
        stored = self.read(suffix)
        return power_of_two(stored) if stored.dtype == np.uint8 else stored.astype(np.float32)

    def scale_dtype(self, suffix: str) -> str:
        """Return the dtype of scales in NumPy's words; exponents and FP8 are read as float32."""
        stored = self.dtype(suffix)
        return np.dtype(FLOAT_DTYPES[stored]).name if stored in FLOAT_DTYPES else "float32"

    def check(self, suffix: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """Refuse a tensor of another dtype or shape.

        Raises:
          ValueError: it is missing, or none of these.
        """
        found = self.dtype(suffix), self.shape(suffix)
        if found[0] not in dtypes or found[1] != shape:
            raise self.refuse(
                f"{suffix} is {found[0]} {list(found[1])}, expected {' or '.join(dtypes)} "
                f"{list(shape)}"
            )

    def refuse(self, reason: str) -> ValueError:
        """Make the error for tensors that cannot be read."""
        return ValueError(
            f"{self.files.directory}: {self.stem}: {reason}; check that config.json and the "
            "weights belong together, or download both again"
        )

    def _find(self, suffix: str) -> str:
        if not self.has(suffix):
            raise self.refuse(f"{self.stem}{suffix} is missing")
        return self.stem + suffix


class Format(NamedTuple):
    """A way in which checkpoints store weights in few bits.

    Attributes:
      name: `quant_method` in config.json.
      marks: how a name ends that only modules in this format have.
      reads: how the names of all tensors end that it may read.
      unread: last parts of names that nothing reads, such as scales of activations.
      open: (`quantization_config`, module) -> its weight.
      check: refuses settings that are not supported, with a ValueError.
      becomes: how the name of the weight ends.
      idle_biases: whether writers add biases of zeros that the model does not have.
    """

    name: str
    marks: tuple[str, ...]
    reads: tuple[str, ...]
    open: Callable[[Mapping[str, Any], Module], Matrix]
    check: Callable[[Mapping[str, Any]], None] = lambda settings: None
    unread: tuple[str, ...] = ()
    becomes: str = ".weight"
    idle_biases: bool = False


def find_block(
    module: Module,
    shape: tuple[int, int],
    scale: tuple[int, ...],
    block: tuple[int, int] | None,
) -> tuple[int, int]:
    """Find how many outputs and inputs share a scale.

    Args:
      module: for the message.
      shape: (out, in) of the weight.
      scale: shape of the scales: one, one for each output, or one for each block.
      block: (outputs, inputs) of a block, if config.json gives it.

    Raises:
      ValueError: scales of this shape are none of these.
    """
    outputs, inputs = shape
    if math.prod(scale) == 1:
        return outputs, inputs
    if scale in ((outputs,), (outputs, 1)):
        return 1, inputs
    if block is not None and scale == (-(-outputs // block[0]), -(-inputs // block[1])):
        return block
    of = "" if block is None else f", or one for each block of {block[0]} by {block[1]}"
    raise module.refuse(
        f"scales {list(scale)} do not fit the weight {list(shape)}: expected one for each "
        f"output{of}"
    )
