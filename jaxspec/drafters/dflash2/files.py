"""Read and write a DFlash2 drafter's directory: z-lab's DFlash layout or the speculators schema,
with further entries and the tensors of convolutions and selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.files import backbone_format, default_layers
from jaxspec.drafters.dflash.hf_config import block_fields, drafter_config_to_hf
from jaxspec.drafters.dflash.weights import drafter_leaves
from jaxspec.drafters.dflash2.network import DFlash2Config
from jaxspec.drafters.format import About, tensor_writer
from jaxspec.io.weights.config_entries import COUNT, POSITIVE, field
from jaxspec.io.weights.weight_map import Leaf, linear

ARCHITECTURE, TYPE = "DFlash2DraftModel", "dflash2"
# What the schema's class assumes of an entry that a file leaves out.
_SPECULATORS_DEFAULTS = {"sliding_window_non_causal": True}
_SIZES = ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k")
# Names of the optional factors in files: {here: there}.
_FACTORS = {
    "output_multiplier": "output_multiplier",
    "logit_softcap": "final_logit_softcapping",
    "embedding_scale": "input_embedding_scale",
}


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is a DFlash2 drafter's."""
    if speculators.is_speculators(hf):
        return hf["speculators_model_type"] == TYPE
    named = str((hf.get("architectures") or [""])[0])
    return "DFlash2" in named or "selector_rank" in (hf.get("dflash_config") or {})


def read_config(hf: dict[str, Any]) -> DFlash2Config:
    """Read the config of a DFlash2 drafter, in either layout.

    Raises:
      ValueError: the architecture is another one, a field is missing, or a setting is not
        supported.
    """
    if speculators.is_speculators(hf):
        fields = speculators.read_drafting(_SPECULATORS_DEFAULTS | hf, TYPE)
        sizes = {name: field(hf, name, COUNT, getattr(DFlash2Config, name)) for name in _SIZES}
        return _make_config(**fields, **sizes)
    named = (hf.get("architectures") or [None])[0]
    if named != ARCHITECTURE or hf.get("model_type") != "qwen3":
        raise ValueError(
            f"DFlash2 drafters of architecture {named!r} (model_type {hf.get('model_type')!r}) are "
            f"not supported (only {ARCHITECTURE} of type 'qwen3' is)"
        )
    own = hf.get("dflash_config") or {}
    sizes = {name: field(own, name, COUNT, where="dflash_config.") for name in _SIZES}
    factors = {
        name: float(field(own, there, POSITIVE, where="dflash_config."))
        for name, there in _FACTORS.items()
        if own.get(there) is not None
    }
    return _make_config(**block_fields(hf), **sizes, **factors)


def _make_config(**fields: Any) -> DFlash2Config:
    """Make the config of a file; its errors name the file."""
    try:
        return DFlash2Config(**fields)
    except ValueError as error:
        raise ValueError(f"config.json: {str(error).removeprefix('config.json: ')}") from None


def config_to_hf(config: DFlash2Config, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that `read_config`, vLLM and SGLang read as `config`."""
    hf = drafter_config_to_hf(config, about, dtype)
    own = {name: getattr(config, name) for name in _SIZES}
    own |= {there: getattr(config, name) for name, there in _FACTORS.items()}
    own = {name: value for name, value in own.items() if value is not None}
    return hf | {
        "architectures": [ARCHITECTURE],
        "dflash_config": hf["dflash_config"] | own,
    }


def speculators_config_to_hf(config: DFlash2Config, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that `read_config`, speculators and vLLM read as `config`.

    Raises:
      ValueError: the target's name is unknown, or the schema cannot describe the drafter.
    """
    plain = {name: getattr(DFlash2Config, name) for name in _FACTORS}
    used = [name for name, value in plain.items() if getattr(config, name) != value]
    if used:
        raise ValueError(
            f"the speculators schema has no {used[0]}: write this drafter in the native layout "
            "(--to dflash2)"
        )
    hf = speculators.speculators_config_to_hf(config, about, dtype, TYPE, ARCHITECTURE)
    return hf | {name: getattr(config, name) for name in _SIZES}


def dflash2_leaves(config: DFlash2Config) -> list[Leaf]:
    """List the leaves of all trained weights."""
    leaves, width = drafter_leaves(config), config.hidden_size
    outputs = 2 * config.conv_kernel_size * config.groups
    for i in range(config.num_layers):
        for conv in ("attention_conv", "mlp_conv"):
            path, name = (f"layers_{i}", conv), f"layers.{i}.{conv}"
            shape = 2, config.conv_kernel_size, width
            leaves.append(Leaf((*path, "base_kernel"), ((f"{name}.base_kernel",),), (shape,)))
            projection = (*path, "kernel_projection"), [f"{name}.kernel_projection"]
            leaves += linear(*projection, width, [outputs], bias=False)
    name, rank = "candidate_selector", config.selector_rank
    for book in ("predecessor", "successor"):
        stored = ((f"{name}.{book}_codebook",),)
        leaves.append(Leaf(("selector", book), stored, ((config.vocab_size, rank),)))
    projection = ("selector", "hidden_projection"), [f"{name}.hidden_projection"]
    return [*leaves, *linear(*projection, width, [rank], bias=False)]


def borrowed(config: DFlash2Config, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter, see `Format.borrowed`."""
    return speculators.BORROWED if hf is not None and speculators.is_speculators(hf) else {}


_NATIVE = tensor_writer(config_to_hf)
_SCHEMA = tensor_writer(speculators_config_to_hf, speculators.name_borrowed)
FORMAT = backbone_format(
    matches,
    read_config,
    dflash2_leaves,
    _NATIVE,
    _SCHEMA,
    lambda config: False,
    default_layers=default_layers,
    borrowed=borrowed,
    writers={"dflash2": _NATIVE, "speculators": _SCHEMA},
)
