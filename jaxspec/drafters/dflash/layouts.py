"""The layouts of DFlash drafters and JetSpec heads: which one a config.json is in.

These are the native layout, the flat one, that of transformers and the speculators schema.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.hf_config import default_feature_layers, drafter_config
from jaxspec.drafters.feature_layers import Layers


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is in the DFlash layout or in the speculators schema."""
    named = str((hf.get("architectures") or [""])[0])
    return speculators.is_speculators(hf) or "DFlash" in named or "dflash_config" in hf


def read_config(hf: dict[str, Any]) -> BlockDrafterConfig:
    """Read the config of the drafter that a config.json describes, in any layout.

    Raises:
      ValueError: it describes no drafter that can be read.
    """
    if speculators.is_speculators(hf):
        return speculators.speculators_config(hf)
    return drafter_config(hf)


def recognise(hf: dict[str, Any], names: Collection[str], causal: bool) -> bool:
    """Say whether a config.json looks like a DFlash drafter's, in any layout.

    Args:
      causal: ask for JetSpec heads, whose slots see only earlier slots, instead.
    """
    own = hf.get("dflash_config") or {}
    named = str((hf.get("architectures") or [""])[0])
    if not ("DFlash" in named or own or hf.get("speculation_type") == "dflash"):
        return False
    return bool(own.get("causal_head") or own.get("causal")) == causal


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in, other than the speculators schema."""
    if "speculation_type" in hf or any(name.startswith("encoder.") for name in names):
        return "transformers"
    return "native (z-lab DFlash)" if "dflash_config" in hf else "flat"


def default_layers(hf: dict[str, Any]) -> Layers | None:
    """Return the layers that readers assume if config.json states none."""
    count = hf.get("num_target_layers")
    if not count:
        return None
    layers = default_feature_layers(count, hf["num_hidden_layers"])
    return Layers(layers, "default for num_target_layers")


def borrowed(config: BlockDrafterConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter (see
    `jaxspec.drafters.format.Format`); only the speculators schema saves any.
    """
    present = needs_speculators(config) if hf is None else speculators.is_speculators(hf)
    names = speculators.borrowed_names(config) if present else []
    return {name: speculators.BORROWED[name] for name in names}


def needs_speculators(config: BlockDrafterConfig) -> bool:
    """Say whether the native layout cannot describe the drafter."""
    return config.draft_vocab_size is not None and not config.causal
