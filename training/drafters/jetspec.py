"""Train JetSpec: DFlash's blocks, whose slots see only earlier slots."""

import dataclasses
import functools

from .dflash import DFLASH
from .dflash.model import make_block_config
from .presets import (
    LLAMA31_8B,
    LLAMA31_LAYERS,
    LLAMA31_MASK,
    QWEN3_36_LAYERS,
    QWEN3_MASK,
    as_jetspec_paper,
    make_large_preset,
    make_mini_preset,
    make_smollm2_preset,
)

_MINI = make_mini_preset("jetspec", gamma=4.0)
_SMOLLM2 = make_smollm2_preset("jetspec", dict(block_size=8, num_layers=2))

JETSPEC = dataclasses.replace(
    DFLASH,
    name="jetspec",
    what="A JetSpec causal parallel head",
    config=functools.partial(make_block_config, causal=True),
    presets={
        "jetspec": _MINI,
        "jetspec-paper": as_jetspec_paper(_MINI),
        "smollm2-jetspec": _SMOLLM2,
        "smollm2-jetspec-paper": as_jetspec_paper(_SMOLLM2),
        "jetspec-qwen3-4b": make_large_preset(
            "Qwen/Qwen3-4B", "jetspec", QWEN3_36_LAYERS, QWEN3_MASK, kind="fkl"
        ),
        "jetspec-qwen3-8b": make_large_preset(
            "Qwen/Qwen3-8B", "jetspec", QWEN3_36_LAYERS, QWEN3_MASK, kind="fkl"
        ),
        "jetspec-qwen3-30b-a3b": make_large_preset(
            "Qwen/Qwen3-30B-A3B", "jetspec", None, QWEN3_MASK, kind="fkl"
        ),
        "jetspec-llama-3.1-8b": make_large_preset(
            LLAMA31_8B, "jetspec", LLAMA31_LAYERS, LLAMA31_MASK, 10, kind="fkl"
        ),
    },
)
