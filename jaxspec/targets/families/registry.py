"""All families of target models, by name and by architecture."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import find_text_config
from jaxspec.targets.families.shipped.gemma3 import GEMMA3
from jaxspec.targets.families.shipped.gemma4 import GEMMA4
from jaxspec.targets.families.shipped.glm4_moe import GLM4_MOE
from jaxspec.targets.families.shipped.gpt_oss import GPT_OSS
from jaxspec.targets.families.shipped.granite import GRANITE
from jaxspec.targets.families.shipped.llama import LLAMA, MINISTRAL, MINISTRAL3, MISTRAL
from jaxspec.targets.families.shipped.mimo import MIMO_V2_FLASH
from jaxspec.targets.families.shipped.olmo import OLMO2, OLMO3
from jaxspec.targets.families.shipped.phi3 import PHI3
from jaxspec.targets.families.shipped.qwen import QWEN2, QWEN3
from jaxspec.targets.families.shipped.qwen3_5 import QWEN3_5
from jaxspec.targets.families.shipped.qwen3_moe import QWEN3_MOE
from jaxspec.targets.families.shipped.smollm3 import SMOLLM3

_FAMILIES: dict[str, TargetFamily] = {}


def register(family: TargetFamily) -> None:
    """Make a family of target models known to the whole library.

    Raises:
      ValueError: the family's name is taken.
    """
    if family.name in _FAMILIES:
        raise ValueError(f"a family is called {family.name!r} already: choose another name")
    _FAMILIES[family.name] = family


def unregister(name: str) -> None:
    """Undo `register`.

    Raises:
      ValueError: no family has this name.
    """
    named(name)
    del _FAMILIES[name]


def families() -> tuple[TargetFamily, ...]:
    """List all families in the order of registration."""
    return tuple(_FAMILIES.values())


def named(name: str) -> TargetFamily:
    """Return the family called `name`.

    Raises:
      ValueError: unknown name; the message lists the known ones.
    """
    if name not in _FAMILIES:
        raise ValueError(f"unknown family {name!r}: {choose_one(name, _FAMILIES)}")
    return _FAMILIES[name]


def family_of(config: TargetConfig) -> TargetFamily:
    """Return the family of a target."""
    return named(config.family)


def family_of_hf(hf: dict[str, Any]) -> TargetFamily:
    """Return the family that a config.json names.

    Raises:
      ValueError: unknown architecture; the message lists the supported ones.
    """
    text = find_text_config(hf)
    architecture, name = (text.get("architectures") or [None])[0], text.get("model_type")
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is not None and architecture in (None, family.architecture):
        return family
    if "Draft" in str(architecture):
        raise ValueError(
            f"config.json describes a drafter ({architecture}), not a target model: pass it as "
            "`drafter=`"
        )
    raise ValueError(
        f"unknown architecture {architecture!r} (model_type {name!r}); supported: "
        f"{', '.join(family.architecture for family in families())}"
    )


_SHIPPED = (QWEN3, LLAMA, QWEN3_MOE, QWEN2, MISTRAL, MINISTRAL, MINISTRAL3, PHI3, OLMO2, OLMO3)
_SHIPPED += (SMOLLM3, GRANITE, GPT_OSS, GEMMA3, GEMMA4, GLM4_MOE, MIMO_V2_FLASH, QWEN3_5)
for _family in _SHIPPED:
    register(_family)
