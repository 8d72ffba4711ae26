"""Train SpecBlock: chains of blocks from random anchors, and a head that ranks its own tokens."""

from __future__ import annotations

import dataclasses

from ..presets import LLAMA31_8B, DrafterPreset, make_mini_head_preset, make_smollm2_preset
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
        method=dict(specblock=BlockOptions(blocks=3, rank_from=2_000, blocks_from=2_000)),
    )


def in_paper_form(preset: DrafterPreset) -> DrafterPreset:
    """Return a SpecBlock recipe with the paper's objective and layers (section 3.3, appendix A).

    Slots weigh alike, the rank head learns by cross-entropy under the drafts' mask from features of
    the whole distribution, it alone waits, and layers match the target's. Chains have the M = 2
    blocks of decoding. Optimizer, data and sizes stay those of `preset`.
    """
    own = preset.method["specblock"]
    own = dataclasses.replace(own, blocks=2, decay=1.0, rank_loss="plain", blocks_from=0)
    model = preset.model | dict(match_layers=True, rank_top=0)
    return dataclasses.replace(preset, model=model, method=dict(specblock=own))


def _paper(target: str) -> DrafterPreset:
    """Make the paper's recipe (appendix A): AdamW with its defaults (0.9, 0.999) at 5e-5, 1.5 %
    warm-up and a cosine, batches of 96 rows, chains from every position.

    The epochs, 20, the rows' length and the clipping are those of the released scripts.
    """
    preset = in_paper_form(_large(target))
    return dataclasses.replace(
        preset,
        optimizer=preset.optimizer | dict(warmup=0.015, betas=(0.9, 0.999)),
        loop=preset.loop | dict(parts=48),
        batch=96,
        epochs=20.0,
        anchors=preset.length,
    )


_MINI = make_mini_head_preset(
    "specblock",
    dict(draft_vocab=2048, num_layers=2, ffn_size=304, slots=4, blocks=2),
    gamma=None,
    specblock=BlockOptions(blocks=2, rank_from=60, blocks_from=60),
)
_SMOLLM2 = dataclasses.replace(
    make_smollm2_preset(
        "specblock",
        dict(num_layers=2, slots=4, blocks=2, feature_layers=(1, 14, 26), zero_residual=False),
        gamma=None,
    ),
    method=dict(specblock=BlockOptions(blocks=2, rank_from=100, blocks_from=100)),
)
_QWEN3_8B, _QWEN3_32B = "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"

SPECBLOCK = TrainingRecord(
    name="specblock",
    what="A SpecBlock block-iterative drafter",
    config=make_specblock_config,
    init=lambda config, seed, head: init_specblock(config, seed),
    loss=make_specblock_loss,
    options=BlockOptions,
    presets={
        "specblock": _MINI,
        "smollm2-specblock": _SMOLLM2,
        "specblock-qwen3-8b": _large(_QWEN3_8B),
        "specblock-qwen3-32b": _large(_QWEN3_32B),
        "specblock-llama-3.1-8b": _large(LLAMA31_8B),
        "specblock-paper": _paper(LLAMA31_8B),
        "specblock-paper-qwen3-8b": _paper(_QWEN3_8B),
        "specblock-paper-qwen3-32b": _paper(_QWEN3_32B),
        "specblock-paper-mini": in_paper_form(_MINI),
        "smollm2-specblock-paper": in_paper_form(_SMOLLM2),
    },
    change_batches=late_batches,
)
