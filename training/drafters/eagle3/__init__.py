"""Train EAGLE-3: chains of forwards on the drafter's own outputs (training-time test)."""

from __future__ import annotations

import dataclasses

from ..presets import (
    LLAMA31_8B,
    make_large_head_preset,
    make_mini_head_preset,
    make_smollm2_preset,
)
from ..record import TrainingRecord
from .loss import make_eagle_loss
from .model import init_eagle, make_eagle_config


@dataclasses.dataclass
class EagleOptions:
    """EAGLE-3's training-time test.

    Attributes:
      steps: forwards of a chain.
      decay: weight of each forward relative to the one before.
    """

    steps: int = 7
    decay: float = 0.8


EAGLE3 = TrainingRecord(
    name="eagle3",
    what="An EAGLE-3 drafter",
    config=make_eagle_config,
    init=init_eagle,
    loss=lambda config, target, loss, own: make_eagle_loss(
        config, target, loss, steps=own.steps, decay=own.decay
    ),
    options=EagleOptions,
    group="eagle",
    presets={
        "eagle3": make_mini_head_preset(
            "eagle3", dict(draft_vocab=2048, ffn_size=1344), gamma=None
        ),
        "smollm2-eagle3": make_smollm2_preset("eagle3", dict(zero_residual=False), gamma=None),
        "eagle3-qwen3-8b": make_large_head_preset("eagle3", "Qwen/Qwen3-8B"),
        "eagle3-llama-3.1-8b": make_large_head_preset("eagle3", LLAMA31_8B),
    },
)
