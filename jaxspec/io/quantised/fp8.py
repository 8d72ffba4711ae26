"""FP8 as DeepSeek, Qwen and Meta publish it: float8_e4m3fn weights with scales beside them.

`weight_scale_inv` [ceil(out / 128), ceil(in / 128)] has a scale for each block of
`weight_block_size`; `weight_scale` has one for each output, or one. Both are multiplied by, in
spite of the name. Source: transformers, `FineGrainedFP8Config` and `FbgemmFp8Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxspec.io.quantised.matrix import Matrix
from jaxspec.io.quantised.module import Format, Module
from jaxspec.io.quantised.one_byte import open_one_byte

_BLOCKS, _SCALE = ".weight_scale_inv", ".weight_scale"


def _check(settings: Mapping[str, Any]) -> None:
    block = settings.get("weight_block_size")
    pair = isinstance(block, list) and len(block) == 2
    if block is not None and not (pair and all(type(n) is int and n > 0 for n in block)):
        raise ValueError(
            f"config.json: weight_block_size must be two integers above 0, not {block!r}; "
            "download it again"
        )
    if settings.get("expert_dtype", "fp8") != "fp8":
        raise ValueError(
            "config.json: experts in FP4 beside FP8 weights (expert_dtype) are not read: use a "
            "checkpoint with FP8 experts"
        )


def _open(settings: Mapping[str, Any], module: Module) -> Matrix:
    block = settings.get("weight_block_size")
    scale = _BLOCKS if module.has(_BLOCKS) else _SCALE
    return open_one_byte(module, scale, None if block is None else tuple(block))


FP8 = Format(
    "fp8",
    marks=(_BLOCKS, _SCALE),
    reads=(".weight", _BLOCKS, _SCALE),
    open=_open,
    check=_check,
    unread=("input_scale", "input_scale_ub", "activation_scale", "k_scale", "v_scale"),
)
