"""Train Falcon: chains of blocks at random anchors, with glancing."""

from __future__ import annotations

import dataclasses

from ..presets import make_mini_head_preset
from ..record import TrainingRecord
from .loss import make_falcon_loss
from .model import init_falcon, make_falcon_config


@dataclasses.dataclass
class FalconOptions:
    """Falcon's glancing distillation.

    Attributes:
      glance: tokens of the text shown to the drafter, as a share of the rows that it drafts wrong.
    """

    glance: float = 0.25


FALCON = TrainingRecord(
    name="falcon",
    what="A Falcon semi-autoregressive drafter",
    config=make_falcon_config,
    init=init_falcon,
    loss=lambda config, target, loss, own: make_falcon_loss(
        config, target, loss, glance=own.glance
    ),
    options=FalconOptions,
    presets={
        "falcon": make_mini_head_preset(
            "falcon", dict(draft_vocab=2048, ffn_size=512, slots=2, blocks=3)
        )
    },
)
