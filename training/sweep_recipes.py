"""The recipes that sweeps compare, and the sizes of their runs."""

from __future__ import annotations

import dataclasses

from training.methods import EagleOptions, MethodOptions
from training.presets import PRESETS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One training run of a sweep.

    Attributes:
      kind: `jetspec` (causal) or `dflash` (bidirectional), or `eagle3` or `specblock` as in their
        presets for `mini`.
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


_BLOCKS = PRESETS["specblock"].method["specblock"]
# (changes of the model, the method's own options) by variant.
VARIANTS: dict[str, tuple[dict, MethodOptions]] = {
    **{f"steps{steps}": ({}, MethodOptions(eagle=EagleOptions(steps))) for steps in (1, 3, 5, 7)},
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
DATA = [Recipe(data=data) for data in ("regenerated", "corpus")]
SWEEPS = {
    "objective": OBJECTIVE,
    "causality": CAUSALITY,
    "data": DATA,
    "all": list(dict.fromkeys(OBJECTIVE + CAUSALITY + DATA)),
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


SCALES = {
    "small": Scale(
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
    ),
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
