"""Defaults of recipes, and what the recipes of several drafters share.

The recipes themselves are in `training.drafters`: those of published drafters, and those for the
small models that ship. If a paper and its code do not give a value, the choice is ours and is
marked so. Sources: DFlash as SpecForge trains it (sgl-project/SpecForge, Qwen3-4B and 8B recipes);
JetSpec (section 4 and appendix: forward KL, up to 512 anchors per row, blocks of 16, five layers,
no depth weights; it does not publish learning rates, so SpecForge's are used); DSpark
(deepseek-ai/DeepSpec).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..loss.objective import LossOptions
from ..run.loop import LoopOptions
from ..run.optimizer import OptimizerOptions
from .model_options import ModelOptions

# Score temperatures of drafters trained on text of several temperatures, greedy and sampled, see
# jaxspec/zoo/mini/README.md.
SCORING = (0.4, 0.5)

QWEN3_MASK = 151669  # an embedding row beyond the tokenizer's last id
QWEN3_36_LAYERS = (1, 9, 17, 25, 33)
SMOLLM2_MASK = 6  # <filename>, a special token of pre-training that chats do not use
LLAMA31_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA31_MASK = (
    128002  # <|reserved_special_token_0|>, ours: the published drafter's is not documented
)
LLAMA31_LAYERS = (1, 8, 15, 22, 29)


@dataclasses.dataclass(frozen=True)
class DrafterPreset:
    """Defaults of a recipe. Every one can be overridden on the command line.

    Attributes:
      target: the model that it is made for.
      model, loss, optimizer, loop: options that differ from the defaults of their class.
      length, batch, anchors: tokens per row, rows per batch, anchors per row.
      epochs: passes over the data, instead of the loop's steps; None for the steps.
      method: the drafter's own options, by group, if they differ from the defaults.
    """

    target: str
    model: dict[str, Any]
    loss: dict[str, Any]
    optimizer: dict[str, Any]
    loop: dict[str, Any]
    length: int
    batch: int
    anchors: int
    epochs: float | None = None
    method: dict[str, Any] = dataclasses.field(default_factory=dict)

    def parts(self, run) -> tuple[ModelOptions, LossOptions, OptimizerOptions, LoopOptions]:
        """Return the option groups, with `run` as the run's folder."""
        return (
            ModelOptions(**self.model),
            LossOptions(**self.loss),
            OptimizerOptions(**self.optimizer),
            LoopOptions(run, **self.loop),
        )


def make_mini_preset(drafter: str, **loss) -> DrafterPreset:
    """Make a preset for `mini`: Muon, which learns fast, ten minutes on two CPU cores."""
    return DrafterPreset(
        target="mini",
        model=dict(
            kind=drafter,
            block_size=8,
            num_layers=2,
            feature_layers=(1, 3, 4),
            score_temperature=SCORING,
            zero_residual=True,
        ),
        loss=dict(kind="fkl", **loss),
        optimizer=dict(name="muon", rate=3e-3, muon_rate=0.02, warmup=20),
        loop=dict(steps=540, save_every=90, eval_every=180, parts=2),
        length=256,
        batch=16,
        anchors=24,
    )


def make_smollm2_preset(
    drafter: str, model: dict[str, Any], gamma: float | None = 4.0
) -> DrafterPreset:
    """Make a preset for SmolLM2-135M-Instruct: `mini`'s optimizer on the model's own answers.

    All but a draft model propose 12,288 of its 49,152 tokens. The drafters read the same layers, so
    that they can share one `--cache-features`.
    """
    own = dict(
        kind=drafter,
        feature_layers=(1, 10, 19, 27),
        draft_vocab=12_288,
        mask_token=SMOLLM2_MASK,
        score_temperature=SCORING,
        zero_residual=True,
    )
    return dataclasses.replace(
        make_mini_preset(drafter, gamma=gamma),
        target="smollm2-135m",
        model=own | model,
        loop=dict(steps=1_000, save_every=100, eval_every=200, parts=2),
        anchors=32,
    )


def as_jetspec_paper(preset: DrafterPreset) -> DrafterPreset:
    """Change a preset to JetSpec's published recipe (section 4); its sizes stay the model's.

    Blocks of 16, no depth weights, paths scored by the drafter's raw probabilities (equation 10),
    the tree of algorithm 1 seven wide as in the released code, and SpecForge's AdamW instead of
    Muon, since the paper gives no learning rate.
    """
    model = dict(block_size=16, score_temperature=(1.0, 1.0), builder="expand/w7")
    steps = preset.loop["steps"]
    adamw = dict(
        name="adamw", rate=6e-4, warmup=steps // 25, betas=(0.9, 0.999), weight_decay=0.0, clip=1.0
    )
    return dataclasses.replace(
        preset,
        model=preset.model | model | dict(zero_residual=False),
        loss=preset.loss | dict(gamma=None),
        optimizer=adamw,
    )


def make_large_preset(
    target: str,
    drafter: str,
    layers: tuple[int, ...] | None,
    mask: int,
    block_size: int = 16,
    **loss,
) -> DrafterPreset:
    """Make SpecForge's preset for large targets.

    AdamW at 6e-4, 4 % warm-up, batches of 32 rows of 3,072 tokens with 512 anchors, 10,000 steps.
    """
    return DrafterPreset(
        target=target,
        model=dict(
            kind=drafter,
            block_size=block_size,
            num_layers=5,
            feature_layers=layers,
            num_features=5,
            mask_token=mask,
        ),
        loss=dict(dtype="bfloat16", anchor_chunk=64, tile=1024, **loss),
        optimizer=dict(
            name="adamw", rate=6e-4, warmup=400, betas=(0.9, 0.999), weight_decay=0.0, clip=1.0
        ),
        loop=dict(steps=10_000, save_every=500, eval_every=1000, parts=8),
        length=3072,
        batch=32,
        anchors=512,
    )


def make_large_head_preset(drafter: str, target: str, **model: Any) -> DrafterPreset:
    """Make SpecForge's preset of EAGLE-3 for a drafter with an output projection of its own.

    AdamW at 1e-4, 1.5 % warm-up and a cosine, rows of 4,096 tokens.
    """
    return DrafterPreset(
        target=target,
        model=dict(kind=drafter, draft_vocab=32_000) | model,
        loss=dict(kind="fkl", dtype="bfloat16", anchor_chunk=64, tile=1024),
        optimizer=dict(
            name="adamw", rate=1e-4, warmup=1_500, betas=(0.9, 0.999), weight_decay=0.0, clip=0.5
        ),
        loop=dict(steps=100_000, save_every=2_500, eval_every=5_000, parts=8),
        length=4096,
        batch=8,
        anchors=512,
    )


def make_mini_head_preset(
    drafter: str, model: dict[str, Any], gamma: float | None = 4.0, **method
) -> DrafterPreset:
    """Make a preset for `mini` of a drafter with an output projection of its own.

    It has about as many parameters as the others, and trains on the same text.
    """
    own = dict(kind=drafter, feature_layers=(1, 3, 4), score_temperature=SCORING)
    preset = make_mini_preset(drafter, gamma=gamma)
    return dataclasses.replace(preset, model=own | model, method=method)
