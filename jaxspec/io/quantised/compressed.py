"""compressed-tensors, the format of llm-compressor: int8, fp8, FP4 or packed integers.

Groups of modules in config.json have their own numbers of bits and blocks. `weight` holds values of
one byte. `weight_packed` int32 [out, ceil(in * bits / 32)] holds integers plus half of their range,
and zero points lie alike, along the outputs; as uint8 [out, in / 2] it holds FP4 numbers. Source:
compressed-tensors 0.20.1, `compressors/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.io.quantised.bits import unpack, unpack_fp4
from jaxspec.io.quantised.groups import check_groups, find_weights
from jaxspec.io.quantised.matrix import Grid, Groups, Matrix, Opened, decode
from jaxspec.io.quantised.module import Format, Module, find_block
from jaxspec.io.quantised.one_byte import open_one_byte

_SCALE, _PACKED, _ZERO, _WHOLE = (
    ".weight_scale",
    ".weight_packed",
    ".weight_zero_point",
    ".weight_global_scale",
)


def _open(settings: Mapping[str, Any], module: Module) -> Matrix:
    weights = find_weights(settings, module)
    if not module.has(_PACKED):
        return _open_whole(weights, module)
    if module.dtype(_PACKED) == "U8":
        return _open_fp4(weights, module)
    return _open_packed(weights, module)


def _open_whole(weights: Mapping[str, Any], module: Module) -> Matrix:
    block = weights.get("block_structure")
    if isinstance(block, str):  # "128x128" in older files
        block = [int(size) for size in block.split("x")]
    if weights.get("group_size"):
        block = [1, weights["group_size"]]
    return open_one_byte(
        module,
        _SCALE,
        None if block is None else tuple(block),
        _ZERO if module.has(_ZERO) else None,
    )


def _open_packed(weights: Mapping[str, Any], module: Module) -> Matrix:
    bits, half = weights["num_bits"], 1 << (weights["num_bits"] - 1)
    outputs, inputs = shape = tuple(int(size) for size in module.read(".weight_shape"))
    module.check(_PACKED, ("I32",), (outputs, -(-inputs * bits // 32)))
    group = weights.get("group_size")
    block = (1, group) if group and group > 0 else None
    scales = module.shape(_SCALE)
    height, width = find_block(module, shape, scales, block)
    kept = bits == 8 and width == inputs and not module.has(_ZERO)

    def open_() -> Opened:
        stored = module.reader(_PACKED)

        def codes(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            return unpack(stored(start, stop, memory), bits, inputs)

        def values(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            return (codes(start, stop, memory) ^ np.uint8(half)).view(np.int8)

        scale = module.read_scales(_SCALE).reshape(-(-outputs // height), -1)
        grid = Grid(scale, _read_zero(module, bits, scale), height, width, order)
        rows = decode(codes, grid)
        if not kept:
            return Opened(rows, codes=codes, grid=grid)
        return Opened(rows, values, np.broadcast_to(scale[:, 0], (outputs,)))

    order = _read_order(module, -(-inputs // width)) if module.has(".weight_g_idx") else None
    grouped = bits == 4 and height == 1 and order is None
    size = Groups(width, module.scale_dtype(_SCALE)) if grouped else None
    return Matrix(shape, "int8" if kept else None, open_, size)


def _read_order(module: Module, groups: int) -> np.ndarray | None:
    """Read the group of each input; None if they follow one another, as -1 says."""
    order = module.read(".weight_g_idx")
    if order.max() >= groups:
        raise module.refuse(f"weight_g_idx holds {order.max()}, of {groups} groups")
    return None if order.min() < 0 else order


def _read_zero(module: Module, bits: int, scale: np.ndarray) -> np.ndarray | int:
    """Read zero points [R, C] of codes, which count from half of their range below 0."""
    half = 1 << (bits - 1)
    if not module.has(_ZERO):
        return half
    if module.dtype(_ZERO) != "I32":
        return module.read(_ZERO).reshape(scale.shape).astype(np.int32) + half
    rows, columns = scale.shape
    module.check(_ZERO, ("I32",), (-(-rows * bits // 32), columns))
    return unpack(module.read(_ZERO).T, bits, rows).T


def _open_fp4(weights: Mapping[str, Any], module: Module) -> Matrix:
    """Read FP4 numbers: NVFP4's blocks of 16 with a scale of all blocks, or MXFP4's of 32."""
    outputs, half = module.shape(_PACKED)
    shape, size = (outputs, 2 * half), weights.get("group_size") or 0
    _, width = find_block(module, shape, module.shape(_SCALE), (1, size) if size > 0 else None)

    def open_() -> Opened:
        stored = module.reader(_PACKED)
        scale = module.read_scales(_SCALE)
        if module.has(_WHOLE):
            scale = scale / module.read_scales(_WHOLE).reshape(())

        def numbers(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            return unpack_fp4(stored(start, stop, memory))

        def codes(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            return unpack(stored(start, stop, memory), 4, 2 * half)

        grid = Grid(scale, inputs=width)
        return Opened(decode(numbers, grid), codes=codes, grid=grid)

    return Matrix(shape, None, open_, Groups(width, "float32", "fp4"))


COMPRESSED = Format(
    "compressed-tensors",
    marks=(_SCALE,),
    reads=(".weight", _PACKED, _SCALE, _ZERO, _WHOLE, ".weight_shape", ".weight_g_idx"),
    open=_open,
    check=check_groups,
    unread=(
        "input_scale",
        "input_zero_point",
        "input_global_scale",
        "output_scale",
        "output_zero_point",
        "k_scale",
        "v_scale",
        "q_scale",
    ),
)
