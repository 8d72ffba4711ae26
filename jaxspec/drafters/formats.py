"""Every drafter's file format, behind one set of functions: which config.json is whose, and how its
weights are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jaxspec.core import config as configs
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash import files as drafter_files
from jaxspec.drafters.dflash import weights as drafter_weights
from jaxspec.drafters.dflash.files import About
from jaxspec.drafters.dflash.hf_config import check_fits
from jaxspec.drafters.draft_model import files as small_model
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.falcon import files as falcon
from jaxspec.drafters.medusa import files as medusa
from jaxspec.drafters.parallelspec import files as parallelspec
from jaxspec.drafters.specblock import files as specblock
from jaxspec.io.safetensors_files import WEIGHTS, write_safetensors


class Format(NamedTuple):
    """The file format of one kind of drafter.

    Attributes:
      kind: what a drafter of it is called where it is loaded alone.
      matches: (config.json) -> whether it is one.
      config_from_hf: (config.json) -> config, as far as the file tells.
      for_target: (config, TargetConfig) -> the config in full; ValueError where it does not fit.
      read: (directory, config, dtype) -> variables.
      check: (directory, config) -> None; raises what `read` would, short of reading weights.
      write: (directory, config, variables, About) -> None.
    """

    kind: str
    matches: Callable[[dict[str, Any]], bool]
    config_from_hf: Callable[[dict[str, Any]], Any]
    for_target: Callable[[Any, TargetConfig], Any]
    read: Callable[..., dict[str, Any]]
    check: Callable[..., None]
    write: Callable[..., None]


def _block(config, target: TargetConfig):
    check_fits(config, target)
    return config


def _write_block(directory, config, variables, about: About) -> None:
    drafter_files.write_own(directory, config, drafter_weights.to_hf(variables, config), about)


def _format(kind: str, module: ModuleType) -> Format:
    def write(directory, config, variables, about: About) -> None:
        tensors = module.tensors(variables, config)
        hf = module.config_to_hf(config, about, drafter_files.main_dtype(tensors))
        Path(directory).mkdir(parents=True, exist_ok=True)
        write_safetensors(Path(directory) / getattr(module, "WEIGHTS", WEIGHTS), tensors)
        (Path(directory) / "config.json").write_text(
            json.dumps(hf, indent=2) + "\n", encoding="utf-8"
        )

    return Format(
        kind,
        module.matches,
        module.config_from_hf,
        module.for_target,
        module.read,
        module.check,
        write,
    )


# In the order that they are asked: some EAGLE-3 files name the target's architecture, so plain
# models come last.
FORMATS: dict[type, Format] = {
    configs.EagleConfig: _format("eagle3", eagle),
    configs.SpecBlockConfig: _format("specblock", specblock),
    configs.MedusaConfig: _format("medusa", medusa),
    configs.ParallelSpecConfig: _format("parallelspec", parallelspec),
    configs.FalconConfig: _format("falcon", falcon),
    configs.SmallModelConfig: _format("small", small_model),
    configs.BlockDrafterConfig: Format(
        "dflash",
        lambda hf: True,
        drafter_files.read_config,
        _block,
        drafter_files.load_drafter,
        drafter_files.check_files,
        _write_block,
    ),
}


def read_config(hf: dict[str, Any]):
    """The config of the drafter that a config.json describes; ValueError where it is none that can
    be read.
    """
    return next(one for one in FORMATS.values() if one.matches(hf)).config_from_hf(hf)


def for_target(config, target: TargetConfig):
    """`config` in full, for files that leave some of it to the target; ValueError where it does not
    fit.
    """
    return FORMATS[type(config)].for_target(config, target)


def kind(config) -> str:
    """What a drafter is called where it is loaded alone."""
    return "jetspec" if getattr(config, "causal", False) else FORMATS[type(config)].kind


def load_drafter(directory: str | os.PathLike, config, dtype: str) -> dict[str, Any]:
    """Variables (see `jaxspec.drafters.base`) of the drafter in `directory`, whose config.json was
    read as `config`.

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, NaN, a wrong map of draft tokens, or a part that is not
        supported.
    """
    return FORMATS[type(config)].read(directory, config, dtype)


def check_files(directory: str | os.PathLike, config) -> None:
    """Raise what `load_drafter` would, short of reading weights: their names, shapes and dtypes are
    looked at.
    """
    FORMATS[type(config)].check(directory, config)


def write_drafter(directory: str | os.PathLike, config, variables, about: About) -> None:
    """Write a drafter in the layout that it is published in, in its weights' dtype."""
    FORMATS[type(config)].write(directory, config, variables, about)
