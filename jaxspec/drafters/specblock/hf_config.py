"""config.json of SpecBlock drafters in the authors' layout, to and from `SpecBlockConfig`.

The layout has no fields for the feature layers, for the number of blocks on a path and for the
ablations. The `jaxspec` object holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.drafters.eagle3 import hf_config as eagle
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import (
    Layers,
    own_fields,
    own_layers,
    read_target_sizes,
    sizes_to_hf,
)
from jaxspec.drafters.specblock.network import SpecBlockConfig
from jaxspec.targets.families.hf_fields import integer, transformer_fields

ARCHITECTURE = "LlamaForCausalLMSpecBlock"
_NAMES = (ARCHITECTURE, "LlamaForCausalLMSpecBlockShift")
_FLAGS = ("prefix_broadcast", "shift", "qk_norm")

# If a file states no feature layers, they are EAGLE-3's.
for_target = eagle.for_target


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes a SpecBlock drafter."""
    return (hf.get("architectures") or [None])[0] in _NAMES


def config_from_hf(hf: dict[str, Any]) -> SpecBlockConfig:
    """Read the `SpecBlockConfig` of a config.json that `matches`.

    `feature_layers` is empty if the file does not state them; `for_target` fills them in.
    `head_dim` is always the width divided by the heads, whatever the file says, as in the authors'
    code. `num_ttt_blocks` counts blocks in training and is not read.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    own = hf.get("jaxspec") or {}
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    if hidden % heads:
        raise ValueError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    flags = {name: own.get(name, name != "qk_norm") for name in _FLAGS}
    wrong = next((name for name, value in flags.items() if not isinstance(value, bool)), None)
    if wrong:
        raise ValueError(
            f"config.json: jaxspec.{wrong} must be true or false, not {flags[wrong]!r}"
        )
    return SpecBlockConfig(
        **transformer_fields(hf | {"head_dim": hidden // heads}),
        **flags,
        slots=integer(hf, "diffspec_draft_token_num", 7),
        blocks=integer(own, "blocks", SpecBlockConfig.blocks),
        rank_classes=integer(hf, "rank_classes", SpecBlockConfig.rank_classes),
        rank_hidden=integer(own, "rank_hidden", SpecBlockConfig.rank_hidden),
        rank_top=integer(own, "rank_top", SpecBlockConfig.rank_top),
        feature_layers=_read_feature_layers(own),
        **read_target_sizes(hf),
    )


def config_to_hf(config: SpecBlockConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json in the authors' layout.

    Args:
      about: the target.
      dtype: dtype of the weights.

    Raises:
      ValueError: the heads do not divide the width, which the layout cannot say.
    """
    if config.head_dim * config.num_heads != config.hidden_size:
        raise ValueError(
            f"SpecBlock's layout makes head_dim hidden_size / heads, and {config.num_heads} heads "
            f"of {config.head_dim} are not {config.hidden_size} wide: make the drafter with "
            f"head_dim={config.hidden_size // config.num_heads}"
        )
    sizes = ("blocks", "rank_hidden", "rank_top", *_FLAGS)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **sizes_to_hf(config, about.max_positions, dtype),
        "diffspec_draft_token_num": config.slots,
        "rank_classes": config.rank_classes,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {name: getattr(config, name) for name in sizes},
    }


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Say whether a config.json looks like a SpecBlock drafter's."""
    architecture = str((hf.get("architectures") or [""])[0])
    return "SpecBlock" in architecture or "diffspec_draft_token_num" in hf or "rank_classes" in hf


def default_layers(hf: dict[str, Any]) -> Layers:
    """Return the layers that the `jaxspec` object states, or else those that EAGLE-3 assumes."""
    return own_layers(hf) or eagle.default_layers(hf)


def _read_feature_layers(own: Mapping[str, Any]) -> tuple[int, ...]:
    layers = own.get("feature_layers", [])
    if not isinstance(layers, list) or not all(type(i) is int and i >= 0 for i in layers):
        raise ValueError(
            "config.json: jaxspec.feature_layers must be target layers, 0 or higher, "
            f"not {layers!r}"
        )
    return tuple(layers)
