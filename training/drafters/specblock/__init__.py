"""Train SpecBlock: chains of blocks from random anchors, and a head that ranks its own tokens."""

from __future__ import annotations

from ..presets import LLAMA31_8B, DrafterPreset, make_mini_head_preset
from ..record import TrainingRecord
from .loss import BlockOptions, late_batches, make_specblock_loss
from .model import init_specblock, make_specblock_config


def _large(target: str, draft_vocab: int = 32_000) -> DrafterPreset:
    """Make the preset of the released scripts.

    AdamW (0.9, 0.95) at 5e-5, batches of 24 rows of 1,024 tokens, 3 blocks of 4 slots. Ours: a
    cosine instead of their linear decay, and the number of steps.
    """
    return DrafterPreset(
        target=target,
        model=dict(kind="specblock", draft_vocab=draft_vocab, num_layers=2, slots=4, blocks=2),
        loss=dict(kind="fkl", dtype="bfloat16", tile=1024),
        optimizer=dict(
            name="adamw", rate=5e-5, warmup=500, betas=(0.9, 0.95), weight_decay=0.0, clip=0.5
        ),
        loop=dict(steps=100_000, save_every=2_500, eval_every=5_000, parts=8),
        length=1024,
        batch=24,
        anchors=128,
        method=dict(specblock=BlockOptions(blocks=3, rank_from=2_000)),
    )


SPECBLOCK = TrainingRecord(
    name="specblock",
    what="A SpecBlock block-iterative drafter",
    config=make_specblock_config,
    init=lambda config, seed, head: init_specblock(config, seed),
    loss=make_specblock_loss,
    options=BlockOptions,
    presets={
        "specblock": make_mini_head_preset(
            "specblock",
            dict(draft_vocab=2048, num_layers=2, ffn_size=304, slots=4, blocks=2),
            gamma=None,
            specblock=BlockOptions(blocks=2, rank_from=60),
        ),
        "specblock-qwen3-8b": _large("Qwen/Qwen3-8B"),
        "specblock-llama-3.1-8b": _large(LLAMA31_8B),
    },
    change_batches=late_batches,
)
