"""The drafters that can be trained: config for a target, first weights, and objective of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxspec.core.config import TargetConfig
from jaxspec.core.near_miss import choose_one
from jaxspec.drafters.draft_model.config import SmallModelConfig
from jaxspec.drafters.eagle3.config import EagleConfig
from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.files import for_target
from jaxspec.drafters.medusa.config import MedusaConfig
from jaxspec.drafters.parallelspec.config import ParallelSpecConfig
from jaxspec.drafters.registry import record_of
from jaxspec.drafters.specblock.config import SpecBlockConfig

from . import drafter_model
from .drafter_loss import LossOptions, make_loss
from .drafter_model import ModelOptions
from .dspark_loss import BACKBONE, DSparkOptions, make_dspark_loss
from .dspark_model import find_backbone, init_dspark, make_dspark_config
from .eagle_loss import init_eagle, make_eagle_loss
from .falcon_loss import init_falcon, make_falcon_loss
from .medusa_loss import init_medusa, make_medusa_loss
from .parallelspec_loss import init_parallelspec, make_parallelspec_loss
from .small_model_loss import init_small_model, make_small_model_loss
from .specblock_loss import BlockOptions, init_specblock, make_specblock_loss


@dataclasses.dataclass
class EagleOptions:
    """EAGLE-3's training-time test.

    Attributes:
      steps: forwards of a chain.
      decay: weight of each forward relative to the one before.
    """

    steps: int = 7
    decay: float = 0.8


@dataclasses.dataclass
class FalconOptions:
    """Falcon's glancing distillation.

    Attributes:
      glance: tokens of the text shown to the drafter, as a share of the rows that it drafts wrong.
    """

    glance: float = 0.25


@dataclasses.dataclass
class MethodOptions:
    """Options of single methods. Only those of the method that is trained are read.

    Attributes:
      eagle: options of `eagle3`.
      specblock: options of `specblock`, see `training.specblock_loss.BlockOptions`.
      falcon: options of `falcon`.
      dspark: options of `dspark`, see `training.dspark_loss.DSparkOptions`.
    """

    eagle: EagleOptions = dataclasses.field(default_factory=EagleOptions)
    specblock: BlockOptions = dataclasses.field(default_factory=BlockOptions)
    falcon: FalconOptions = dataclasses.field(default_factory=FalconOptions)
    dspark: DSparkOptions = dataclasses.field(default_factory=DSparkOptions)


class TrainingMethod(NamedTuple):
    """How a kind of drafter is trained.

    Attributes:
      config: (ModelOptions, TargetConfig, folder of the tokenizer) -> its config.
      init: (config, seed, head [E, D] where its output projection may start) -> float32 variables.
      loss: (config, TargetConfig, LossOptions, MethodOptions) -> the loss, see `training.loop.fit`.
      what: a sentence for its model card.
      own: name of its group in MethodOptions, or None.
      trains_head: whether it trains an output projection of its own, instead of using the target's.
      backbone: (config, config of a drafter to start from) -> the config which that one must have;
        None: `config` itself.
      frozen: MethodOptions -> names of submodules that are not trained.
    """

    config: Callable[[ModelOptions, TargetConfig, str | None], Any]
    init: Callable[[Any, int, Any], Any]
    loss: Callable[[Any, TargetConfig, LossOptions, MethodOptions], Callable]
    what: str
    own: str | None = None
    trains_head: bool = True
    backbone: Callable[[Any, Any], Any] | None = None
    frozen: Callable[[MethodOptions], tuple[str, ...]] = lambda own: ()


def find_method(kind: str) -> TrainingMethod:
    """Return the method called `kind`.

    Raises:
      ValueError: unknown kind; the message lists the known ones.
    """
    if kind not in METHODS:
        raise ValueError(f"unknown kind {kind!r}: {choose_one(kind, METHODS)}")
    return METHODS[kind]


def head_is_trained(config) -> bool:
    """Say whether the drafter trains an output projection of its own."""
    return METHODS[record_of(config).name].trains_head


def _wide(config_class: type, options: ModelOptions, target: TargetConfig, **own):
    """Make the config of a drafter that reads target features and has its own output projection."""
    _check(options, target)
    sizes = ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    config = config_class(
        hidden_size=target.hidden_size,
        **{name: getattr(options, name) or getattr(target, name) for name in sizes},
        rope_theta=target.rope_theta,
        rope_scaling=target.rope_scaling,
        norm_eps=target.norm_eps,
        qk_norm=False,
        feature_layers=options.feature_layers or (),
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=options.draft_vocab,
        score_temperature=options.score_temperature,
        **{name: value for name, value in own.items() if value is not None},
    )
    if not config.feature_layers:
        from jaxspec.drafters.eagle3.hf_config import default_feature_layers

        config = dataclasses.replace(
            config, feature_layers=default_feature_layers(target.num_layers)
        )
    return for_target(config, target)


def _check(options: ModelOptions, target: TargetConfig) -> None:
    for name, low, high in (
        ("slots", 1, 32),
        ("blocks", 1, 32),
        ("depth", 1, 128),
        ("num_layers", 1, 128),
    ):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} is {value}: give {low} to {high}")
    if options.draft_vocab is not None and not 1 <= options.draft_vocab < target.vocab_size:
        raise ValueError(
            f"draft_vocab is {options.draft_vocab}: give 1 to {target.vocab_size - 1} tokens, "
            f"or None for the target's {target.vocab_size}"
        )


def _eagle(options: ModelOptions, target: TargetConfig, tokenizer):
    return _wide(EagleConfig, options, target, num_layers=1, depth=options.depth)


def _specblock(options: ModelOptions, target: TargetConfig, tokenizer):
    own = {
        name: getattr(options, name)
        for name in ("num_layers", "slots", "blocks", "prefix_broadcast", "shift")
    }
    # Its heads share the hidden width, whatever the target's do.
    config = _wide(SpecBlockConfig, options, target, **own)
    return dataclasses.replace(config, head_dim=config.hidden_size // config.num_heads)


def _parallelspec(options: ModelOptions, target: TargetConfig, tokenizer):
    return _wide(ParallelSpecConfig, options, target, num_layers=1, slots=options.slots)


def _falcon(options: ModelOptions, target: TargetConfig, tokenizer):
    size = options.lstm_size or target.hidden_size // 2
    own = {"num_layers": 1, "slots": options.slots, "blocks": options.blocks, "lstm_size": size}
    return _wide(FalconConfig, options, target, **own)


def _medusa(options: ModelOptions, target: TargetConfig, tokenizer):
    _check(options, target)
    if options.draft_vocab is not None:
        raise ValueError("medusa heads draft the whole vocabulary: leave draft_vocab out")
    return MedusaConfig(
        target.hidden_size,
        options.slots or 4,
        options.num_layers,
        options.own_projection,
        feature_layers=(target.num_layers,),
        vocab_size=target.vocab_size,
        score_temperature=options.score_temperature,
    )


def _small(options: ModelOptions, target: TargetConfig, tokenizer):
    _check(options, target)
    if options.draft_vocab is not None:
        raise ValueError("a draft model drafts the whole vocabulary: leave draft_vocab out")
    sizes = {
        name: getattr(options, name)
        for name in ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    }
    model = dataclasses.replace(
        target,
        hidden_size=options.hidden_size or target.hidden_size // 2,
        num_layers=options.num_layers,
        **{name: value for name, value in sizes.items() if value is not None},
    )
    return SmallModelConfig(
        model, options.depth or SmallModelConfig.depth, options.score_temperature
    )


def _block_init(config, seed: int, head):
    return drafter_model.init_drafter(config, seed)


def _block_loss(config, target: TargetConfig, loss: LossOptions, own: MethodOptions) -> Callable:
    return make_loss(config, target, loss)


_BLOCK = (drafter_model.make_drafter_config, _block_init, _block_loss)
METHODS: dict[str, TrainingMethod] = {
    "dflash": TrainingMethod(*_BLOCK, "A DFlash block-diffusion drafter", trains_head=False),
    "jetspec": TrainingMethod(*_BLOCK, "A JetSpec causal parallel head", trains_head=False),
    "dspark": TrainingMethod(
        make_dspark_config,
        lambda config, seed, head: init_dspark(config, seed),
        lambda config, target, loss, own: make_dspark_loss(config, target, loss, own.dspark),
        "A DSpark drafter",
        "dspark",
        trains_head=False,
        backbone=find_backbone,
        frozen=lambda own: (BACKBONE,) if own.dspark.freeze_backbone else (),
    ),
    "eagle3": TrainingMethod(
        _eagle,
        init_eagle,
        lambda config, target, loss, own: make_eagle_loss(
            config, target, loss, **dataclasses.asdict(own.eagle)
        ),
        "An EAGLE-3 drafter",
        "eagle",
    ),
    "specblock": TrainingMethod(
        _specblock,
        lambda config, seed, head: init_specblock(config, seed),
        lambda config, target, loss, own: make_specblock_loss(config, target, loss, own.specblock),
        "A SpecBlock block-iterative drafter",
        "specblock",
    ),
    "medusa": TrainingMethod(
        _medusa,
        lambda config, seed, head: init_medusa(
            config, seed, head if config.own_projection else None
        ),
        lambda config, target, loss, own: make_medusa_loss(config, target, loss),
        "Medusa heads",
    ),
    "parallelspec": TrainingMethod(
        _parallelspec,
        init_parallelspec,
        lambda config, target, loss, own: make_parallelspec_loss(config, target, loss),
        "A ParallelSpec drafter",
    ),
    "falcon": TrainingMethod(
        _falcon,
        init_falcon,
        lambda config, target, loss, own: make_falcon_loss(
            config, target, loss, glance=own.falcon.glance
        ),
        "A Falcon semi-autoregressive drafter",
        "falcon",
    ),
    "small": TrainingMethod(
        _small,
        lambda config, seed, head: init_small_model(config, seed),
        lambda config, target, loss, own: make_small_model_loss(config, target, loss),
        "A small language model that drafts by itself",
    ),
}
