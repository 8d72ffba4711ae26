"""Recipes by name: those of published drafters, and those for the small model that ships.

If a paper and its code do not give a value, the choice is ours and is marked so. Sources: DFlash as
SpecForge trains it (sgl-project/SpecForge, Qwen3-4B and 8B recipes); JetSpec (section 4 and
appendix: forward KL, up to 512 anchors per row, blocks of 16, five layers, no depth weights; it
does not publish learning rates, so SpecForge's are used); DSpark (deepseek-ai/DeepSpec).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .drafter_loss import LossOptions
from .drafter_model import ModelOptions
from .dspark_loss import DSparkOptions
from .loop import LoopOptions
from .methods import MethodOptions
from .optimizer import OptimizerOptions
from .specblock_loss import BlockOptions

# Score temperatures of drafters trained on text of several temperatures, greedy and sampled, see
# jaxspec/zoo/mini/README.md.
SCORING = (0.4, 0.5)

QWEN3_MASK = 151669  # an embedding row beyond the tokenizer's last id
SMOLLM2_MASK = 6  # <filename>, a special token of pre-training that chats do not use
LLAMA31_MASK = (
    128002  # <|reserved_special_token_0|>, ours: the published drafter's is not documented
)


@dataclasses.dataclass(frozen=True)
class DrafterPreset:
    """Defaults of a recipe. Every one can be overridden on the command line.

    Attributes:
      target: the model that it is made for.
      model, loss, optimizer, loop: options that differ from the defaults of their class.
      length, batch, anchors: tokens per row, rows per batch, anchors per row.
      method: groups of `MethodOptions` that differ from the defaults.
    """

    target: str
    model: dict[str, Any]
    loss: dict[str, Any]
    optimizer: dict[str, Any]
    loop: dict[str, Any]
    length: int
    batch: int
    anchors: int
    method: dict[str, Any] = dataclasses.field(default_factory=dict)

    def methods(self) -> MethodOptions:
        """Return the method's own options."""
        return MethodOptions(**self.method)

    def parts(self, run) -> tuple[ModelOptions, LossOptions, OptimizerOptions, LoopOptions]:
        """Return the option groups, with `run` as the run's folder."""
        return (
            ModelOptions(**self.model),
            LossOptions(**self.loss),
            OptimizerOptions(**self.optimizer),
            LoopOptions(run, **self.loop),
        )


def _small(drafter: str, **loss) -> DrafterPreset:
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


def _smollm2(drafter: str, model: dict[str, Any], gamma: float | None = 4.0) -> DrafterPreset:
    """Make a preset for SmolLM2-135M-Instruct: `_small`'s optimizer on the model's own answers.

    All but a draft model propose 12,288 of its 49,152 tokens. The drafters read the same layers, so
    that they can share one `--cache-features`.
    """
    small = _small(drafter, gamma=gamma)
    own = dict(
        kind=drafter,
        feature_layers=(1, 10, 19, 27),
        draft_vocab=12_288,
        mask_token=SMOLLM2_MASK,
        score_temperature=SCORING,
        zero_residual=True,
    )
    return dataclasses.replace(
        small,
        target="smollm2-135m",
        model=own | model,
        loop=dict(steps=1_000, save_every=100, eval_every=200, parts=2),
        anchors=32,
    )


def _large(
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


def _dspark(preset: DrafterPreset, **own) -> DrafterPreset:
    """Make a small preset one of DSpark: blocks that draft 7 tokens from the anchor on."""
    model = preset.model | dict(kind="dspark", block_size=7, markov_rank=64)
    return dataclasses.replace(preset, model=model | own)


def _frozen(preset: DrafterPreset, steps: int) -> DrafterPreset:
    """Make a DSpark preset train heads on the frozen DFlash drafter of `--init`, in fewer steps."""
    return dataclasses.replace(
        preset,
        model=preset.model | dict(block_size=8, sample_from_anchor=False),
        loop=preset.loop | dict(steps=steps, parts=1),
        method=dict(dspark=DSparkOptions(freeze_backbone=True)),
    )


def _large_dspark(target: str, layers: tuple[int, ...]) -> DrafterPreset:
    """Make DeepSpec's preset of DSpark for Qwen3.

    Blocks of 7, rank 256, batches of 512 rows of 4,096 tokens with 512 anchors, 4 % warm-up. It
    trains for 10 epochs of 1.3 million answers, about 25,000 steps. Packed rows are ours.
    """
    large = _large(target, "dspark", layers, QWEN3_MASK, 7, gamma=4.0)
    return dataclasses.replace(
        large,
        optimizer=large.optimizer | dict(warmup=1_000),
        loop=dict(steps=25_000, save_every=500, eval_every=1_000, parts=128),
        length=4096,
        batch=512,
        method=dict(dspark=DSparkOptions(after_prompt=True)),
    )


def _small_with_head(
    drafter: str, model: dict[str, Any], gamma: float | None = 4.0, **method
) -> DrafterPreset:
    """Make a preset like `_small` for drafters with an output projection of their own.

    They have about as many parameters, and train on the same text.
    """
    small = _small(drafter, gamma=gamma)
    own = dict(kind=drafter, feature_layers=(1, 3, 4), score_temperature=SCORING)
    return dataclasses.replace(small, model=own | model, method=method)


def _large_eagle(target: str, draft_vocab: int = 32_000) -> DrafterPreset:
    """Make SpecForge's preset for EAGLE-3.

    AdamW at 1e-4, 1.5 % warm-up and a cosine, rows of 4,096 tokens, 7 test-time steps.
    """
    return DrafterPreset(
        target=target,
        model=dict(kind="eagle3", draft_vocab=draft_vocab),
        loss=dict(kind="fkl", dtype="bfloat16", anchor_chunk=64, tile=1024),
        optimizer=dict(
            name="adamw", rate=1e-4, warmup=1_500, betas=(0.9, 0.999), weight_decay=0.0, clip=0.5
        ),
        loop=dict(steps=100_000, save_every=2_500, eval_every=5_000, parts=8),
        length=4096,
        batch=8,
        anchors=512,
    )


def _large_specblock(target: str, draft_vocab: int = 32_000) -> DrafterPreset:
    """Make the preset of SpecBlock's released scripts.

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
        method=dict(specblock=BlockOptions(blocks=3, rank_from=2_000)),
    )


_QWEN3_36_LAYERS = (1, 9, 17, 25, 33)
PRESETS = {
    "dflash": _small("dflash", gamma=4.0),
    "jetspec": _small("jetspec", gamma=4.0),
    "dspark": _dspark(_small("dspark", gamma=4.0)),
    "dspark-frozen": _frozen(_dspark(_small("dspark", gamma=4.0)), steps=180),
    "eagle3": _small_with_head("eagle3", dict(draft_vocab=2048, ffn_size=1344), gamma=None),
    "specblock": _small_with_head(
        "specblock",
        dict(draft_vocab=2048, num_layers=2, ffn_size=304, slots=4, blocks=2),
        gamma=None,
        specblock=BlockOptions(blocks=2, rank_from=60),
    ),
    "medusa": _small_with_head("medusa", dict(slots=5, num_layers=4, own_projection=False)),
    "parallelspec": _small_with_head(
        "parallelspec", dict(draft_vocab=2048, ffn_size=1216, slots=7)
    ),
    "falcon": _small_with_head("falcon", dict(draft_vocab=2048, ffn_size=512, slots=2, blocks=3)),
    "small": _small_with_head(
        "small",
        dict(num_layers=4, hidden_size=160, num_heads=2, num_kv_heads=1, head_dim=64, ffn_size=640),
        gamma=None,
    ),
    "smollm2-jetspec": _smollm2("jetspec", dict(block_size=8, num_layers=2)),
    "smollm2-dflash": _smollm2("dflash", dict(block_size=8, num_layers=2)),
    "smollm2-dspark": _dspark(_smollm2("dspark", dict(num_layers=2))),
    "smollm2-dspark-frozen": _frozen(_dspark(_smollm2("dspark", dict(num_layers=2))), steps=300),
    "smollm2-eagle3": _smollm2("eagle3", dict(zero_residual=False), gamma=None),
    "eagle3-qwen3-8b": _large_eagle("Qwen/Qwen3-8B"),
    "eagle3-llama-3.1-8b": _large_eagle("meta-llama/Llama-3.1-8B-Instruct"),
    "specblock-qwen3-8b": _large_specblock("Qwen/Qwen3-8B"),
    "specblock-llama-3.1-8b": _large_specblock("meta-llama/Llama-3.1-8B-Instruct"),
    "dflash-qwen3-4b": _large(
        "Qwen/Qwen3-4B", "dflash", _QWEN3_36_LAYERS, QWEN3_MASK, kind="ce", gamma=7.0
    ),
    "dflash-qwen3-8b": _large(
        "Qwen/Qwen3-8B", "dflash", _QWEN3_36_LAYERS, QWEN3_MASK, kind="ce", gamma=7.0
    ),
    "dflash-llama-3.1-8b": _large(
        "meta-llama/Llama-3.1-8B-Instruct",
        "dflash",
        (1, 8, 15, 22, 29),
        LLAMA31_MASK,
        10,
        kind="ce",
        gamma=5.0,
    ),
    "dspark-qwen3-4b": _large_dspark("Qwen/Qwen3-4B", _QWEN3_36_LAYERS),
    "dspark-qwen3-8b": _large_dspark("Qwen/Qwen3-8B", _QWEN3_36_LAYERS),
    "dspark-qwen3-14b": _large_dspark("Qwen/Qwen3-14B", (1, 10, 19, 28, 37)),
    "jetspec-qwen3-4b": _large(
        "Qwen/Qwen3-4B", "jetspec", _QWEN3_36_LAYERS, QWEN3_MASK, kind="fkl"
    ),
    "jetspec-qwen3-8b": _large(
        "Qwen/Qwen3-8B", "jetspec", _QWEN3_36_LAYERS, QWEN3_MASK, kind="fkl"
    ),
    "jetspec-qwen3-30b-a3b": _large("Qwen/Qwen3-30B-A3B", "jetspec", None, QWEN3_MASK, kind="fkl"),
    "jetspec-llama-3.1-8b": _large(
        "meta-llama/Llama-3.1-8B-Instruct",
        "jetspec",
        (1, 8, 15, 22, 29),
        LLAMA31_MASK,
        10,
        kind="fkl",
    ),
}
