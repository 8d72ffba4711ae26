"""Train DSpark: DFlash's backbone and its heads, together or the heads alone."""

from __future__ import annotations

import dataclasses

from ..presets import (
    QWEN3_36_LAYERS,
    QWEN3_MASK,
    DrafterPreset,
    make_large_preset,
    make_mini_preset,
    make_smollm2_preset,
)
from ..record import Backbone, TrainingRecord
from .loss import DSparkOptions, make_dspark_loss
from .model import BACKBONE, find_backbone, init_dspark, make_dspark_config, silence_heads


def _on_small(preset: DrafterPreset) -> DrafterPreset:
    """Make a small preset one of DSpark: blocks that draft 7 tokens from the anchor on."""
    model = preset.model | dict(kind="dspark", block_size=7, markov_rank=64)
    return dataclasses.replace(preset, model=model)


def _frozen(preset: DrafterPreset, steps: int) -> DrafterPreset:
    """Train heads on the frozen DFlash drafter of `--init`, in fewer steps."""
    return dataclasses.replace(
        preset,
        model=preset.model | dict(block_size=8, sample_from_anchor=False),
        loop=preset.loop | dict(steps=steps, parts=1),
        method=dict(dspark=DSparkOptions(freeze_backbone=True)),
    )


def _large(target: str, layers: tuple[int, ...]) -> DrafterPreset:
    """Make DeepSpec's preset for Qwen3.

    Blocks of 7, rank 256, batches of 512 rows of 4,096 tokens with 512 anchors, 4 % warm-up. It
    trains for 10 epochs of 1.3 million answers, about 25,000 steps. Packed rows are ours.
    """
    large = make_large_preset(target, "dspark", layers, QWEN3_MASK, 7, gamma=4.0)
    return dataclasses.replace(
        large,
        optimizer=large.optimizer | dict(warmup=1_000),
        loop=dict(steps=25_000, save_every=500, eval_every=1_000, parts=128),
        length=4096,
        batch=512,
        method=dict(dspark=DSparkOptions(after_prompt=True)),
    )


_MINI = _on_small(make_mini_preset("dspark", gamma=4.0))
_SMOLLM2 = _on_small(make_smollm2_preset("dspark", dict(num_layers=2)))
DSPARK = TrainingRecord(
    name="dspark",
    what="A DSpark drafter",
    config=make_dspark_config,
    init=lambda config, seed, head: init_dspark(config, seed),
    loss=make_dspark_loss,
    options=DSparkOptions,
    presets={
        "dspark": _MINI,
        "dspark-frozen": _frozen(_MINI, steps=180),
        "smollm2-dspark": _SMOLLM2,
        "smollm2-dspark-frozen": _frozen(_SMOLLM2, steps=300),
        "dspark-qwen3-4b": _large("Qwen/Qwen3-4B", QWEN3_36_LAYERS),
        "dspark-qwen3-8b": _large("Qwen/Qwen3-8B", QWEN3_36_LAYERS),
        "dspark-qwen3-14b": _large("Qwen/Qwen3-14B", (1, 10, 19, 28, 37)),
    },
    trains_head=False,
    # The Markov head's W2; a backbone, which is DFlash's network, has none.
    sized_by_vocabulary=lambda config: bool(getattr(config, "markov_rank", 0)),
    backbone=Backbone(BACKBONE, find_backbone),
    frozen=lambda own: (BACKBONE,) if own.freeze_backbone else (),
    after_prompt=lambda own: own.after_prompt,
    zero_residual=silence_heads,
    outputs=("w2", "confidence_head"),
)
