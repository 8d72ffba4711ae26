"""The recipes that sweeps compare, and the sizes of their runs."""

from __future__ import annotations

import dataclasses

from .dspark_loss import DSparkOptions
from .methods import EagleOptions, MethodOptions
from .presets import PRESETS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One training run of a sweep.

    Attributes:
      kind: `jetspec` (causal) or `dflash` (bidirectional), or `eagle3`, `specblock` or `dspark` as
        in their presets for `mini`.
      loss: `fkl`, `ce` or `rkl`.
      gamma: decay length of the slot weights; None weights all alike.
      data: `regenerated` (the target's own text) or `corpus`.
      seed: seed of first weights, order and anchors.
      variant: one of `VARIANTS`, how the run differs from the preset; empty for no difference.
    """

    kind: str = "jetspec"
    loss: str = "fkl"
    gamma: float | None = None
    data: str = "regenerated"
    seed: int = 0
    variant: str = ""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        decay = "uniform" if self.gamma is None else f"gamma{self.gamma:g}"
        kind = f"{self.kind}-{self.variant}" if self.variant else self.kind
        return f"{kind}-{self.loss}-{decay}-{self.data}-seed{self.seed}"

    @property
    def backbone(self) -> Recipe | None:
        """The recipe of the drafter whose backbone is kept as it is; None if all is trained."""
        frozen = self.variant == FROZEN
        return dataclasses.replace(self, kind="dflash", variant="") if frozen else None


FROZEN = "frozen"
# Steps of training heads on a frozen backbone, as a share of the backbone's own.
FROZEN_SHARE = 3
_BLOCKS = PRESETS["specblock"].method["specblock"]
_NO_HEADS = {"markov_rank": 0, "confidence": False}
# (changes of the model, the method's own options) by variant.
VARIANTS: dict[str, tuple[dict, MethodOptions]] = {
    **{f"steps{steps}": ({}, MethodOptions(eagle=EagleOptions(steps))) for steps in (1, 3, 5, 7)},
    "joint": ({}, MethodOptions(dspark=DSparkOptions())),
    "head-ce": ({}, MethodOptions(dspark=DSparkOptions(ce=1, l1=0))),
    "head-kl": ({}, MethodOptions(dspark=DSparkOptions(ce=0, l1=0, kl=1))),
    "no-head": (_NO_HEADS, MethodOptions(dspark=DSparkOptions())),
    "no-head-ce": (_NO_HEADS, MethodOptions(dspark=DSparkOptions(ce=1, l1=0))),
    FROZEN: (
        {"block_size": 8, "sample_from_anchor": False},
        MethodOptions(dspark=DSparkOptions(freeze_backbone=True)),
    ),
    "full": ({}, MethodOptions(specblock=_BLOCKS)),
    "no-broadcast": ({"prefix_broadcast": False}, MethodOptions(specblock=_BLOCKS)),
    "no-shift": ({"shift": False}, MethodOptions(specblock=_BLOCKS)),
    "no-valid-prefix": (
        {},
        MethodOptions(specblock=dataclasses.replace(_BLOCKS, valid_prefix=False)),
    ),
}
OBJECTIVE = [Recipe(loss=loss, seed=seed) for seed in (0, 1) for loss in ("fkl", "ce", "rkl")]
CAUSALITY = [
    Recipe(kind, gamma=gamma, seed=seed)
    for seed in (0, 1)
    for kind in ("jetspec", "dflash")
    for gamma in (None, 7.0)
]
_WHOLE = (("dflash", 4.0, ""), ("jetspec", 4.0, ""), ("eagle3", None, "steps7"))
_WHOLE += (("dspark", 4.0, "joint"),)
PARTS = (FROZEN, "head-ce", "head-kl", "no-head", "no-head-ce")
# Whole drafters first, with all their seeds, so that an interrupted sweep has the main figures.
CONDITIONING = [
    Recipe(kind, gamma=gamma, seed=seed, variant=variant)
    for group in (_WHOLE, [("dspark", 4.0, part) for part in PARTS])
    for seed in (0, 1, 2)
    for kind, gamma, variant in group
]
DATA = [Recipe(data=data) for data in ("regenerated", "corpus")]
SWEEPS = {
    "objective": OBJECTIVE,
    "causality": CAUSALITY,
    "data": DATA,
    "all": list(dict.fromkeys(OBJECTIVE + CAUSALITY + DATA)),
    "conditioning": CONDITIONING,
    "eagle": [Recipe("eagle3", variant=f"steps{steps}") for steps in (1, 3, 5, 7)],
    "specblock": [
        Recipe("specblock", variant=name)
        for name in ("full", "no-broadcast", "no-shift", "no-valid-prefix")
    ],
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The size of the runs of a sweep.

    Attributes:
      steps, batch, anchors, length: of each run, see `training.train_drafter.DrafterOptions`.
      num_layers, block_size: of the drafters.
      evals: number of measurements of acceptance during training.
      texts: number of prompts that the target answers for the training text.
      prompts: number of held-out prompts per domain.
      max_new_tokens: tokens of each answer.
    """

    steps: int
    batch: int
    anchors: int
    length: int
    num_layers: int
    block_size: int
    evals: int
    texts: int
    prompts: int
    max_new_tokens: int


_SMALL = Scale(
    240,
    16,
    24,
    256,
    num_layers=2,
    block_size=8,
    evals=6,
    texts=2560,
    prompts=10,
    max_new_tokens=96,
)
SCALES = {
    # For comparisons of many recipes and trees.
    "brief": dataclasses.replace(
        _SMALL, steps=120, evals=1, texts=1280, prompts=6, max_new_tokens=48
    ),
    "small": _SMALL,
    "full": Scale(
        4000,
        64,
        64,
        512,
        num_layers=4,
        block_size=16,
        evals=10,
        texts=60_000,
        prompts=60,
        max_new_tokens=256,
    ),
}
