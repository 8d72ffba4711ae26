"""Move weights between named Hugging Face tensors and a parameter tree, by a table of leaves.

PyTorch stores linear weights as [out, in], one tensor per projection and per expert. The parameter
tree stores [in, out]; projections that read the same input are concatenated, and experts stacked. A
`Leaf` says which tensors make up one array of the tree. One table serves reading
(`jaxspec.io.weights.load_tree`) and writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.io.files.tensors import FLOAT_DTYPES, check_finite, is_finite


class Leaf(NamedTuple):
    """One array of the parameter tree.

    Attributes:
      path: keys below "params".
      names: names of tensors by group and part. Groups (experts) are stacked on a new first axis,
        parts are concatenated on the last one.
      shapes: shape of each part as the file stores it.
      transpose: whether the file stores [out, in], or a stack of such matrices.
      stacked: whether the first axis is the group; otherwise there is one group.
      alternating: whether entries of the two halves of the last axis alternate in the file.
      wide: whether the array is float32 whatever the dtype of the others is.
      dtype: of the array and of its tensors, if it is not the dtype of the tree.
    """

    path: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    transpose: bool = False
    stacked: bool = False
    alternating: bool = False
    wide: bool = False
    dtype: str | None = None

    def parts(self) -> Iterable[tuple[str, int, slice, tuple[int, ...]]]:
        """Yield (name, group, slice of the last axis, stored shape) of every tensor."""
        for group, names in enumerate(self.names):
            start = 0
            for name, shape in zip(names, self.shapes, strict=True):
                width = shape[-2] if self.transpose else shape[-1]
                yield name, group, slice(start, start + width), shape
                start += width

    def array_shape(self) -> tuple[int, ...]:
        """Return the shape of the array in the tree."""
        first = self.shapes[0]
        if self.transpose:
            first = (*first[:-2], first[-1], first[-2])
        width = sum(shape[-2] if self.transpose else shape[-1] for shape in self.shapes)
        return (*((len(self.names),) if self.stacked else ()), *first[:-1], width)


class WeightMismatch(ValueError):
    """Tensors do not fit the config.

    Attributes:
      missing: names of tensors that the files lack.
      unexpected: names of tensors that the config has no use for.
      misshapen: {name: (shape in the file, expected shape)}.
      mistyped: {name: stored dtype} of tensors that do not hold floats.
    """

    def __init__(
        self,
        missing: list[str],
        unexpected: list[str],
        misshapen: dict[str, tuple],
        mistyped: dict[str, str] | None = None,
    ):
        self.missing, self.unexpected, self.misshapen, self.mistyped = (
            missing,
            unexpected,
            misshapen,
            mistyped or {},
        )
        shapes = [
            f"{name} {list(found)} (expected {list(wanted)})"
            for name, (found, wanted) in misshapen.items()
        ]
        types = [
            f"{name} {found} (expected {', '.join(FLOAT_DTYPES)})"
            for name, found in self.mistyped.items()
        ]
        kinds = (
            ("missing", missing),
            ("unexpected", unexpected),
            ("misshapen", shapes),
            ("of another type", types),
        )
        listed = [f"{len(items)} {kind}: {_first(items)}" for kind, items in kinds if items]
        super().__init__(
            f"the weights do not fit config.json: {'; '.join(listed)}; "
            "check that both come from the same checkpoint"
        )


def linear(
    path: tuple[str, ...], names: Iterable[str], inputs: int, outputs: Iterable[int], bias: bool
) -> list[Leaf]:
    """Make the leaves of a (fused) linear layer: kernel [in, sum of out], and bias [sum of out].

    Args:
      path: keys of the layer below "params".
      names: module names, one per fused part.
      inputs: size of the input.
      outputs: size of each part's output.
      bias: whether the layer has a bias.
    """
    names, outputs = tuple(names), tuple(outputs)
    weights = tuple(f"{name}.weight" for name in names)
    leaves = [
        Leaf((*path, "kernel"), (weights,), tuple((out, inputs) for out in outputs), transpose=True)
    ]
    if bias:
        biases = tuple(f"{name}.bias" for name in names)
        leaves.append(Leaf((*path, "bias"), (biases,), tuple((out,) for out in outputs)))
    return leaves


def vector(path: tuple[str, ...], name: str, size: int) -> Leaf:
    """Make the leaf of a norm's scale [size]."""
    return Leaf((*path, "scale"), ((f"{name}.weight",),), ((size,),))


def write_tree(leaves: list[Leaf], params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Invert `read_tree`: return host arrays by Hugging Face name, in the parameters' dtype.

    Raises:
      ValueError: `params` lacks an array, or its shape does not fit the config.
    """
    tensors = {}
    for leaf in leaves:
        node: Any = params["params"]
        for key in leaf.path:
            if not isinstance(node, Mapping) or key not in node:
                raise ValueError(
                    f"params has no {'/'.join(leaf.path)}: it was made for another config"
                )
            node = node[key]
        array = np.asarray(jax.device_get(node))
        if array.shape != leaf.array_shape():
            raise ValueError(
                f"params {'/'.join(leaf.path)} is {array.shape}, the config says "
                f"{leaf.array_shape()}"
            )
        if leaf.alternating:
            halves = array.reshape(*array.shape[:-1], 2, -1)
            array = halves.swapaxes(-1, -2).reshape(array.shape)
        for name, group, columns, _ in leaf.parts():
            part = (array[group] if leaf.stacked else array)[..., columns]
            tensors[name] = np.ascontiguousarray(part.swapaxes(-1, -2) if leaf.transpose else part)
    return tensors


def read_stored(
    leaves: list[Leaf],
    read: Mapping[str, np.ndarray],
    ignore: Callable[[str], bool] = lambda name: False,
) -> dict[str, np.ndarray]:
    """Read the tensors of `leaves` by Hugging Face name, in their stored dtypes.

    Raises:
      WeightMismatch, ValueError: see `jaxspec.io.weights.load_tree.read_tree`.
    """
    check_fit(leaves, read, ignore)
    tensors = {name: read[name] for leaf in leaves for name, *_ in leaf.parts()}
    for name, tensor in tensors.items():
        check_float(name, tensor)
        check_finite(name, tensor.dtype.name, is_finite(tensor), True)
    return tensors


def check_fit(
    leaves: list[Leaf], read: Mapping[str, np.ndarray], ignore: Callable[[str], bool]
) -> None:
    """Check that `read` holds exactly the tensors of `leaves`, in their shapes and as floats.

    If `read` has methods `shape(name)` and `dtype(name)`, as files do, only headers are read.
    Otherwise dtypes are checked when tensors are read.

    Raises:
      WeightMismatch: tensors are missing, unexpected, misshapen or not floats; reports all of them.
    """
    wanted = {name: shape for leaf in leaves for name, _, _, shape in leaf.parts()}
    own = {name for leaf in leaves if leaf.dtype for name, *_ in leaf.parts()}
    shape_of = getattr(read, "shape", lambda name: read[name].shape)
    present = set(read)
    missing = [name for name in wanted if name not in present]
    unexpected = [name for name in read if name not in wanted and not ignore(name)]
    found = {name: tuple(shape_of(name)) for name in wanted if name in present}
    misshapen = {
        name: (shape, wanted[name]) for name, shape in found.items() if shape != wanted[name]
    }
    floats = [name for name in found if name not in own]
    stored = {name: read.dtype(name) for name in floats} if hasattr(read, "dtype") else {}
    mistyped = {name: dtype for name, dtype in stored.items() if dtype not in FLOAT_DTYPES}
    if missing or unexpected or misshapen or mistyped:
        raise WeightMismatch(missing, unexpected, misshapen, mistyped)


def check_float(name: str, tensor: np.ndarray) -> None:
    """Refuse a tensor of integers, which a cast would silently turn into weights.

    Raises:
      WeightMismatch: it does not hold floats of a dtype that weights have.
    """
    if tensor.dtype.name not in ("float32", "float16", "bfloat16"):
        raise WeightMismatch([], [], {}, {name: tensor.dtype.name})


def _first(items: list[str], limit: int = 8) -> str:
    return ", ".join(items[:limit]) + (
        f", … ({len(items) - limit} more)" if len(items) > limit else ""
    )
