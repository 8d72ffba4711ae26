"""The recipes that sweeps compare, how each is measured and named, and the sizes of their runs.

Comparisons are of drafters by name: of the modules of a sweep, this one alone has the names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from training.drafters import list_presets
from training.drafters.dspark.loss import DSparkOptions
from training.drafters.eagle3 import EagleOptions
from training.drafters.specblock import in_paper_form


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
      block: block size; None takes the scale's.
      rate: peak learning rate of AdamW, which then trains instead of Muon; None for Muon.
    """

    kind: str = "jetspec"
    loss: str = "fkl"
    gamma: float | None = None
    data: str = "regenerated"
    seed: int = 0
    variant: str = ""
    block: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        decay = "uniform" if self.gamma is None else f"gamma{self.gamma:g}"
        kind = f"{self.kind}-{self.variant}" if self.variant else self.kind
        block = "" if self.block is None else f"-block{self.block}"
        rate = "" if self.rate is None else f"-rate{self.rate:g}"
        return f"{kind}-{self.loss}-{decay}-{self.data}{block}{rate}-seed{self.seed}"

    @property
    def backbone(self) -> Recipe | None:
        """The recipe of the drafter whose backbone is kept as it is; None if all is trained."""
        frozen = self.variant == FROZEN
        return dataclasses.replace(self, kind="dflash", variant="") if frozen else None


FROZEN = "frozen"
# Steps of training heads on a frozen backbone, as a share of the backbone's own.
FROZEN_SHARE = 3
_PRESET = list_presets()["specblock"]
_BLOCKS = _PRESET.method["specblock"]
_PAPER = in_paper_form(_PRESET)
_NO_HEADS = {"markov_rank": 0, "confidence": False}
# (changes of the model, the drafter's own options by group) by variant.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"steps{steps}": ({}, {"eagle": EagleOptions(steps)}) for steps in (1, 3, 5, 7)},
    "joint": ({}, {"dspark": DSparkOptions()}),
    "head-ce": ({}, {"dspark": DSparkOptions(ce=1, l1=0)}),
    "head-kl": ({}, {"dspark": DSparkOptions(ce=0, l1=0, kl=1)}),
    "no-head": (_NO_HEADS, {"dspark": DSparkOptions()}),
    "no-head-ce": (_NO_HEADS, {"dspark": DSparkOptions(ce=1, l1=0)}),
    FROZEN: (
        {"block_size": 8, "sample_from_anchor": False},
        {"dspark": DSparkOptions(freeze_backbone=True)},
    ),
    "full": ({}, {"specblock": _BLOCKS}),
    "no-broadcast": ({"prefix_broadcast": False}, {"specblock": _BLOCKS}),
    "no-shift": ({"shift": False}, {"specblock": _BLOCKS}),
    "no-valid-prefix": (
        {},
        {"specblock": dataclasses.replace(_BLOCKS, valid_prefix=False)},
    ),
    "paper": (_PAPER.model, _PAPER.method),
    "paper-no-broadcast": (_PAPER.model | {"prefix_broadcast": False}, _PAPER.method),
    "paper-no-shift": (_PAPER.model | {"shift": False}, _PAPER.method),
    "paper-no-valid-prefix": (
        _PAPER.model,
        _PAPER.method
        | {"specblock": dataclasses.replace(_PAPER.method["specblock"], valid_prefix=False)},
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
# Each group of a block size begins with the paper's own form, no weights.
WEIGHTS = [
    Recipe(kind, gamma=gamma, block=block)
    for block in (8, 16)
    for gamma in (None, 2.0, 4.0, 7.0)
    for kind in ("jetspec", "dflash")
]
# What table 7's claims about blocks of 16 need.
BLOCKS_OF_16 = [one for one in WEIGHTS if one.block == 16 and one.gamma in (None, 4.0)]
# The paper gives five rates, and its text does not say which.
RATES = [Recipe(rate=rate) for rate in (1e-4, 3e-4, 6e-4, 1e-3, 3e-3)]
DATA = [Recipe(data=data) for data in ("regenerated", "corpus")]
SWEEPS = {
    "objective": OBJECTIVE,
    "causality": CAUSALITY,
    "data": DATA,
    "weights": WEIGHTS,
    "weights-16": BLOCKS_OF_16,
    "rates": [Recipe(), *RATES],
    "all": list(dict.fromkeys(OBJECTIVE + CAUSALITY + DATA)),
    "conditioning": CONDITIONING,
    "eagle": [Recipe("eagle3", variant=f"steps{steps}") for steps in (1, 3, 5, 7)],
    "specblock": [
        Recipe("specblock", variant=name)
        for name in ("full", "paper", "no-broadcast", "no-shift", "no-valid-prefix")
    ],
    "specblock-paper": [
        Recipe("specblock", variant=f"paper{part}")
        for part in ("", "-no-broadcast", "-no-shift", "-no-valid-prefix")
    ],
}

# The tree that all others are compared with: drafter and builder.
REFERENCE = ("dspark", "lattice")
_PARTS = {
    "joint": "dspark",
    "frozen": "dspark, heads on frozen dflash",
    "head-ce": "dspark, cross-entropy alone",
    "head-kl": "dspark, KL alone",
    "no-head": "dspark without heads",
    "no-head-ce": "dspark without heads, cross-entropy alone (DeepSpec's DFlash)",
}
_KINDS = {"jetspec": "causal", "dflash": "bidirectional"}


def _is_plain(recipe: dict) -> bool:
    """Whether a recipe has the scale's blocks and Muon, as those of `all` have."""
    return recipe.get("block") is None and recipe.get("rate") is None


def _name_weights(recipe: dict) -> str:
    gamma = recipe["gamma"]
    return f"{_KINDS[recipe['kind']]}, {'uniform' if gamma is None else f'gamma {gamma:g}'}"


# Comparison: a test for the recipes that belong to it, and their label.
COMPARISONS: dict[str, tuple[Callable[[dict], bool], Callable[[dict], str]]] = {
    "Objective (JetSpec, Table 4)": (
        lambda r: (
            r["kind"] == "jetspec"
            and r["gamma"] is None
            and r["data"] == "regenerated"
            and _is_plain(r)
        ),
        lambda r: {"fkl": "forward KL", "ce": "cross-entropy", "rkl": "reverse KL"}[r["loss"]],
    ),
    "Causal or bidirectional block, depth weights (JetSpec, Table 7)": (
        lambda r: (
            r["kind"] in _KINDS
            and r["loss"] == "fkl"
            and r["data"] == "regenerated"
            and _is_plain(r)
        ),
        _name_weights,
    ),
    **{
        f"Depth weights, blocks of {block} (JetSpec, Table 7)": (
            lambda r, block=block: r.get("block") == block,
            _name_weights,
        )
        for block in (8, 16)
    },
    "Learning rates (JetSpec, Table 3)": (
        lambda r: r["kind"] == "jetspec" and r.get("rate") is not None,
        lambda r: f"AdamW, {r['rate']:g}",
    ),
    "Training text (JetSpec, Table 6)": (
        lambda r: (
            r["kind"] == "jetspec"
            and r["loss"] == "fkl"
            and r["gamma"] is None
            and r["seed"] == 0
            and _is_plain(r)
        ),
        lambda r: {"regenerated": "the target's own text", "corpus": "corpus text"}[r["data"]],
    ),
    "Nodes conditioned on their branch (DSpark and its parts)": (
        lambda r: (
            _is_plain(r)
            and (r["kind"] == "dspark" or r["gamma"] == 4.0 or r["variant"] == "steps7")
        ),
        lambda r: _PARTS.get(r["variant"], r["kind"]),
    ),
    "Steps of training-time test (EAGLE-3)": (
        lambda r: r["kind"] == "eagle3",
        lambda r: f"{r['variant'][5:]} steps",
    ),
    "Components (SpecBlock, its ablation)": (
        lambda r: r["kind"] == "specblock",
        lambda r: r["variant"].replace("-", " "),
    ),
}


# Rows of the trees that are measured.
BUDGETS = (8, 16, 32, 64)
_BLOCK_TREES = {"tree": "best_first", "expand": "expand"}
_STEP_TREES = {"dynamic": "dynamic", "lattice": "lattice"}
# SpecBlock's trees as its paper has them (algorithm 2): by the class at every slot, with the two
# maps of widths, or with k tokens everywhere, its control.
BY_CLASS = "rank_guided/width=null/classes=default/starts=all"
_NO_CAPS = "adaptive_slot0=0/adaptive_all=0/starts=all"
BY_SLIM_CLASS = f"rank_guided/width=null/classes=[2,4,6,4]/{_NO_CAPS}"
UNIFORM = f"rank_guided/width=null/classes=[4,4,4,4]/{_NO_CAPS}"
# Builders by the name of their measurement.
_TREES = {
    "eagle3": _STEP_TREES,
    "dspark": _STEP_TREES,
    "specblock": {
        "rank-guided": "rank_guided",
        "by class": BY_CLASS,
        "uniform": UNIFORM,
    },
}


def list_measurements(
    kind: str, block_size: int, as_published: bool = False
) -> dict[str, dict[str, Any]]:
    """List options of `jaxspec.decode` by the name of the measurement.

    Args:
      as_published: take JetSpec's trees seven wide, as its code does.
    """
    chain = {f"chain@{block_size}": {"builder": "chain", "budget": block_size}}
    blocks = _BLOCK_TREES | ({"expand": "expand/w7"} if as_published else {})
    return chain | {
        f"{name}@{rows}": {"builder": builder, "budget": rows}
        for name, builder in _TREES.get(kind, blocks).items()
        for rows in BUDGETS
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
DEFAULT_SCALE = "small"
SCALES = {
    # For comparisons of many recipes and trees.
    "brief": dataclasses.replace(
        _SMALL, steps=120, evals=1, texts=1280, prompts=6, max_new_tokens=48
    ),
    DEFAULT_SCALE: _SMALL,
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
