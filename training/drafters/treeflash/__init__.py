"""Train TreeFlash: DFlash's backbone and the correction for the token before, together or the
correction alone."""

from __future__ import annotations

import dataclasses

from ..presets import (
    QWEN3_36_LAYERS,
    QWEN3_MASK,
    DrafterPreset,
    make_large_preset,
    make_mini_preset,
)
from ..record import Backbone, TrainingRecord
from .loss import TreeFlashOptions, make_treeflash_loss
from .model import BACKBONE, find_backbone, init_treeflash, make_treeflash_config


def _large(target: str) -> DrafterPreset:
    """Make the paper's preset for Qwen3, as far as it is known: AdamW, a cosine from 1e-4, batches
    of 128 rows of 3,072 tokens.

    It starts from the DFlash drafter in `--init`. The number of steps is ours, about three passes
    over the paper's 100,000 texts; so are the gamma of the early slots and packed rows.
    """
    large = make_large_preset(target, "treeflash", QWEN3_36_LAYERS, QWEN3_MASK, gamma=7.0)
    return dataclasses.replace(
        large,
        optimizer=large.optimizer | dict(rate=1e-4, warmup=0),
        loop=dict(steps=2_400, save_every=200, eval_every=400, parts=32),
        batch=128,
    )


TREEFLASH = TrainingRecord(
    name="treeflash",
    what="A TreeFlash drafter",
    config=make_treeflash_config,
    init=lambda config, seed, head: init_treeflash(config, seed),
    loss=make_treeflash_loss,
    options=TreeFlashOptions,
    presets={
        "treeflash": make_mini_preset("treeflash", gamma=4.0),
        "treeflash-qwen3-4b": _large("Qwen/Qwen3-4B"),
        "treeflash-qwen3-8b": _large("Qwen/Qwen3-8B"),
    },
    trains_head=False,
    backbone=Backbone(BACKBONE, find_backbone),
    frozen=lambda own: (BACKBONE,) if own.freeze_backbone else (),
)
