"""Train GRIFFIN: passes over the drafter's own outputs, at rows that decoding would reach."""

from __future__ import annotations

import dataclasses

from ..presets import DrafterPreset, make_mini_preset, make_smollm2_preset
from ..record import TrainingRecord
from .loss import GriffinOptions, make_griffin_loss, number_batches
from .model import init_griffin, make_griffin_config

LLAMA3_8B = "meta-llama/Meta-Llama-3-8B-Instruct"


def _small(preset: DrafterPreset, **model) -> DrafterPreset:
    """Make a small preset one of GRIFFIN, which chooses no layers.

    It learns at every token, three times, so half the rows and two thirds of the steps cost what
    others do. Noise is a tenth of the authors', since texts are: its width falls with their length.
    """
    kept = {name: preset.model[name] for name in ("score_temperature", "zero_residual")}
    return dataclasses.replace(
        preset,
        model=dict(kind="griffin", **kept, **model),
        loss=dict(kind="fkl"),
        loop=preset.loop | dict(steps=preset.loop["steps"] * 2 // 3, parts=1),
        batch=preset.batch // 2,
        anchors=preset.length,
        method=dict(griffin=GriffinOptions(noise=0.02)),
    )


def _published(passes: int) -> DrafterPreset:
    """Make the authors' recipe for Llama-3-8B-Instruct; a stage of several passes needs `--init`.

    AdamW on batches of 4 texts of 2,048 tokens, gradients clipped by value, a linear decay over
    800,000 steps (they stop after 21 epochs). Ours: packed rows, float32 master weights, the mask
    in the attention of later stages (`--method.griffin.unmasked True` leaves it out as they do).
    """
    first = passes == 1
    return DrafterPreset(
        target=LLAMA3_8B,
        model=dict(kind="griffin", num_kv_heads=32, ffn_size=11_008),
        loss=dict(kind="fkl", dtype="bfloat16", tile=1024),
        optimizer=dict(
            name="adamw",
            rate=5e-5 if first else 3e-5,
            warmup=2_000,
            decay="linear",
            betas=(0.9, 0.95),
            weight_decay=0.01,
            decayed="all",
            clip=0.5,
            clip_by="value",
        ),
        loop=dict(steps=800_000, save_every=5_000, eval_every=20_000, parts=1),
        length=2048,
        batch=4,
        anchors=2048,
        method=dict(
            griffin=GriffinOptions(passes=passes, top=0.0 if first else 0.5, counted="feature")
        ),
    )


GRIFFIN = TrainingRecord(
    name="griffin",
    what="A GRIFFIN drafter",
    config=make_griffin_config,
    init=init_griffin,
    loss=make_griffin_loss,
    options=GriffinOptions,
    presets={
        "griffin": _small(make_mini_preset("griffin"), ffn_size=736),
        "smollm2-griffin": _small(make_smollm2_preset("griffin", {})),
        "griffin-llama-3-8b": _published(1),
        "griffin-llama-3-8b-aligned": _published(2),
    },
    trains_head=False,
    change_batches=number_batches,
)
