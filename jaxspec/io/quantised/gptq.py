"""GPTQ: 2, 3, 4 or 8 bits a weight, with a scale and a zero point for each group of inputs.

`qweight` int32 [in * bits / 32, out] holds inputs one after the other, `qzeros` int32
[groups, out * bits / 32] outputs; `scales` float16 [groups, out]. `g_idx` int32 [in] is the group
of each input: with `desc_act`, groups do not follow one another. In the format `gptq` a zero point
is stored as one less than it is, modulo the number of codes; in `gptq_v2`, as it is. So the largest
code stands for a zero point of 0. Some of AutoGPTQ's layers read it so, others as one code too many,
which none of its writers means. Source: AutoGPTQ 0.7.1, `nn_modules/qlinear/qlinear_cuda_old.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.io.quantised.bits import unpack
from jaxspec.io.quantised.matrix import Grid, Groups, Matrix, Opened, decode
from jaxspec.io.quantised.module import Format, Module

_FLOATS = ("F16", "BF16", "F32")
_BITS, _LAYOUTS = (2, 3, 4, 8), ("gptq", "gptq_v2")


def _layout(settings: Mapping[str, Any]) -> str:
    return settings.get("checkpoint_format") or settings.get("format") or "gptq"


def _check(settings: Mapping[str, Any]) -> None:
    if _layout(settings) not in _LAYOUTS:
        raise ValueError(
            f"config.json: GPTQ's layout {_layout(settings)!r} is not read: use a checkpoint with "
            f"checkpoint_format {' or '.join(map(repr, _LAYOUTS))}"
        )


def _open(settings: Mapping[str, Any], module: Module) -> Matrix:
    """Read a weight; the bits are those of its shapes, since modules may differ."""
    words, scales = module.shape(".qweight"), module.shape(".scales")
    if len(words) != 2 or len(scales) != 2 or words[1] != scales[1]:
        raise module.refuse(f"qweight {list(words)} and scales {list(scales)} differ in outputs")
    groups, outputs = scales
    bits = 32 * module.shape(".qzeros")[-1] // outputs
    if bits not in _BITS:
        raise module.refuse(f"it has {bits} bits a weight, and only {_BITS} are read")
    inputs = 32 * words[0] // bits
    module.check(".qweight", ("I32",), words)
    module.check(".qzeros", ("I32",), (groups, -(-outputs * bits // 32)))
    module.check(".scales", _FLOATS, scales)
    ordered = module.has(".g_idx")
    if ordered:
        module.check(".g_idx", ("I32", "I64"), (inputs,))
    elif inputs % groups or settings.get("desc_act"):
        raise module.refuse(f"g_idx is missing, and {inputs} inputs need it for {groups} groups")

    def open_() -> Opened:
        packed = module.read(".qweight")

        def codes(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            return unpack(packed[:, start:stop].T, bits, inputs)

        zero = unpack(module.read(".qzeros"), bits, outputs).T
        if _layout(settings) == "gptq":
            zero = (zero + np.uint8(1)) & np.uint8((1 << bits) - 1)
        scale = module.read_scales(".scales").T
        grid = Grid(scale, zero, inputs=inputs // groups, group=group)
        return Opened(decode(codes, grid), codes=codes, grid=grid)

    group = _find_groups(module, groups) if ordered else None
    size = Groups(inputs // groups, module.scale_dtype(".scales"))
    return Matrix((outputs, inputs), None, open_, size if bits == 4 and group is None else None)


def _find_groups(module: Module, groups: int) -> np.ndarray | None:
    """Read the group of each input; None if they follow one another."""
    found = module.read(".g_idx")
    if found.min() < 0 or found.max() >= groups:
        raise module.refuse(f"g_idx holds {found.min()} to {found.max()}, of {groups} groups")
    inputs = len(found)
    plain = inputs % groups == 0 and np.array_equal(found, np.arange(inputs) // (inputs // groups))
    return None if plain else found


GPTQ = Format(
    "gptq",
    marks=(".qweight",),
    reads=(".qweight", ".qzeros", ".scales", ".g_idx"),
    open=_open,
    check=_check,
    idle_biases=True,
)
