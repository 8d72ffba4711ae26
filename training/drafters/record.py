"""The one record by which training knows a drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.core.config import TargetConfig

from ..loss.objective import LossOptions
from ..run.optimizer import zero_residual
from .model_options import ModelOptions
from .presets import DrafterPreset


def _nothing(own: Any) -> tuple[str, ...]:
    """Return no names: all of the drafter is trained."""
    return ()


def _never(value: Any) -> bool:
    return False


def _keep(batches: Callable, own: Any) -> Callable:
    """Return `batches` unchanged: all steps train the same."""
    return batches


@dataclasses.dataclass(frozen=True)
class Backbone:
    """The submodule of a drafter that another drafter, which is only this part, can fill.

    Attributes:
      name: of the submodule among the drafter's weights.
      find: (config, config of the drafter to start from) -> the config which that one must have.
        `config` itself means a whole drafter, any other config a backbone.
    """

    name: str
    find: Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingRecord:
    """How a kind of drafter is trained.

    Functions of its own options get an instance of `options`, or None without that class.

    Attributes:
      name: of the drafter, as in its `jaxspec.drafters.DrafterRecord`; `--model.kind` takes it.
      what: what a model card calls it, such as `An EAGLE-3 drafter`.
      config: (ModelOptions, TargetConfig, folder of the tokenizer or None) -> its config.
      init: (config, seed, head [E, D] at which its output projection may start) -> float32
        variables.
      loss: (config, TargetConfig, LossOptions, own options) -> the loss, see
        `training.run.loop.fit`.
      options: dataclass of its own options; None: it has none.
      group: their name on the command line, `--method.GROUP.*`; None: the drafter's name.
      presets: its recipes by name.
      trains_head: whether it trains an output projection of its own, instead of using the target's.
      sized_by_vocabulary: config -> whether it trains other weights with an axis of the tokens that
        can be drafted.
      backbone: see `Backbone`; None: only a whole drafter can be trained further.
      frozen: own options -> names of submodules that are not trained.
      after_prompt: own options -> whether no anchor is the last token of a prompt, see
        `training.data.pipeline.find_anchors`.
      change_batches: (batches, own options) -> batches, for a loss that changes from step to step.
      zero_residual: variables -> variables of which every layer is the identity.
      outputs: submodules whose kernels give logits; Muon leaves them to AdamW.
    """

    name: str
    what: str
    config: Callable[[ModelOptions, TargetConfig, str | None], Any]
    init: Callable[[Any, int, Any], Any]
    loss: Callable[[Any, TargetConfig, LossOptions, Any], Callable]
    options: type | None = None
    group: str | None = None
    presets: Mapping[str, DrafterPreset] = dataclasses.field(default_factory=dict)
    trains_head: bool = True
    sized_by_vocabulary: Callable[[Any], bool] = _never
    backbone: Backbone | None = None
    frozen: Callable[[Any], tuple[str, ...]] = _nothing
    after_prompt: Callable[[Any], bool] = _never
    change_batches: Callable[[Callable, Any], Callable] = _keep
    zero_residual: Callable[[Any], Any] = zero_residual
    outputs: tuple[str, ...] = ()

    @property
    def option_group(self) -> str | None:
        """Return the name of its own options on the command line; None if there are none."""
        return None if self.options is None else self.group or self.name

    def take_options(self, groups: Mapping[str, Any]) -> Any:
        """Take its own options from groups by name, or their defaults; None if there are none."""
        if self.options is None:
            return None
        own = groups.get(self.option_group)
        return self.options() if own is None else own
