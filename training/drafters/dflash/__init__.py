"""Train DFlash: blocks of tokens at random anchors, each slot of which sees the whole block."""

from ..presets import (
    LLAMA31_8B,
    LLAMA31_LAYERS,
    LLAMA31_MASK,
    QWEN3_36_LAYERS,
    QWEN3_MASK,
    make_large_preset,
    make_mini_preset,
    make_smollm2_preset,
)
from ..record import TrainingRecord
from .loss import make_block_loss
from .model import init_block_drafter, make_block_config

DFLASH = TrainingRecord(
    name="dflash",
    what="A DFlash block-diffusion drafter",
    config=make_block_config,
    init=lambda config, seed, head: init_block_drafter(config, seed),
    loss=lambda config, target, loss, own: make_block_loss(config, target, loss),
    presets={
        "dflash": make_mini_preset("dflash", gamma=4.0),
        "smollm2-dflash": make_smollm2_preset("dflash", dict(block_size=8, num_layers=2)),
        "dflash-qwen3-4b": make_large_preset(
            "Qwen/Qwen3-4B", "dflash", QWEN3_36_LAYERS, QWEN3_MASK, kind="ce", gamma=7.0
        ),
        "dflash-qwen3-8b": make_large_preset(
            "Qwen/Qwen3-8B", "dflash", QWEN3_36_LAYERS, QWEN3_MASK, kind="ce", gamma=7.0
        ),
        "dflash-llama-3.1-8b": make_large_preset(
            LLAMA31_8B, "dflash", LLAMA31_LAYERS, LLAMA31_MASK, 10, kind="ce", gamma=5.0
        ),
    },
    trains_head=False,
)
