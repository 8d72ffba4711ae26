"""Read and write a TreeFlash drafter's directory: the authors' layout.

It is z-lab's DFlash layout with a `treeflash_config`, a prefix `model.` of the backbone's tensors,
and the correction's as `ar_approximation.*`. `ar_approximation` is `swiglu`, or null for a drafter
without a correction. Files keep no copy of the target's embeddings or output projection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.drafters.dflash.files import backbone_format, default_layers
from jaxspec.drafters.dflash.hf_config import block_fields, drafter_config_to_hf
from jaxspec.drafters.dflash.weights import drafter_leaves
from jaxspec.drafters.format import About, tensor_writer
from jaxspec.drafters.treeflash.network import TreeFlashConfig
from jaxspec.io.weights.config_entries import COUNT, field
from jaxspec.io.weights.weight_map import Leaf, linear, vector

ARCHITECTURE, SWIGLU = "TreeFlashDraftModel", "swiglu"
# How the authors' class calls the correction and the backbone.
_CORRECTION, _BACKBONE = "ar_approximation", "model"


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is a TreeFlash drafter's."""
    return "TreeFlash" in str((hf.get("architectures") or [""])[0]) or "treeflash_config" in hf


def read_config(hf: dict[str, Any]) -> TreeFlashConfig:
    """Read the config of a TreeFlash drafter.

    `candidate_tokens` is in `treeflash_config` or at the top.

    Raises:
      ValueError: the architecture is another one, a field is missing, or a setting is not
        supported.
    """
    named = (hf.get("architectures") or [None])[0]
    if named != ARCHITECTURE or hf.get("model_type") != "qwen3":
        raise ValueError(
            f"TreeFlash drafters of architecture {named!r} (model_type {hf.get('model_type')!r}) "
            f"are not supported (only {ARCHITECTURE} of type 'qwen3' is)"
        )
    # Readers of config.json leave null entries out, so no entry means no correction.
    own, ours = hf.get("treeflash_config") or {}, hf.get("jaxspec") or {}
    kind = own.get("ar_approximation")
    if kind not in (None, SWIGLU):
        raise ValueError(
            f"config.json: treeflash_config.ar_approximation = {kind!r} is not supported: "
            f"{SWIGLU!r} and null are"
        )
    fields = block_fields(hf)
    fields["builder"] = fields["builder"] or TreeFlashConfig.builder
    outer = field(hf, "candidate_tokens", COUNT, TreeFlashConfig.candidate_tokens)
    try:
        return TreeFlashConfig(
            **fields,
            correction=kind is not None,
            conditions=field(ours, "conditions", COUNT, TreeFlashConfig.conditions, "jaxspec."),
            candidate_tokens=field(own, "candidate_tokens", COUNT, outer, "treeflash_config."),
        )
    except ValueError as error:
        raise ValueError(f"config.json: {str(error).removeprefix('config.json: ')}") from None


def config_to_hf(config: TreeFlashConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that the authors' code reads as `config`.

    Their code takes the number of conditions as an argument; the `jaxspec` object keeps it.
    """
    hf = drafter_config_to_hf(config, about, dtype)
    return hf | {
        "architectures": [ARCHITECTURE],
        "treeflash_config": {
            "ar_approximation": SWIGLU if config.correction else None,
            "candidate_tokens": config.candidate_tokens,
        },
        "jaxspec": hf["jaxspec"] | {"conditions": config.conditions},
    }


def treeflash_leaves(config: TreeFlashConfig) -> list[Leaf]:
    """List the leaves of all trained weights: those of the backbone, and the correction's four."""
    leaves = [leaf._replace(path=("backbone", *leaf.path)) for leaf in drafter_leaves(config)]
    if not config.correction:
        return leaves
    path, width, inner = ("correction",), config.hidden_size, config.ffn_size
    up_gate = [f"{_CORRECTION}.ug"], 2 * width, [2 * inner]
    return [
        *leaves,
        vector((*path, "norm"), f"{_CORRECTION}.norm", width),
        *linear((*path, "up_gate"), *up_gate, bias=True),
        *linear((*path, "down"), [f"{_CORRECTION}.d"], inner, [width], bias=False),
    ]


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in."""
    kind = (hf.get("treeflash_config") or {}).get("ar_approximation")
    return "native (TreeFlash)" if kind else "native (TreeFlash without a correction)"


def _published_name(name: str) -> str:
    """Return the published name of a tensor; readers drop the prefix."""
    return name if name.startswith(f"{_CORRECTION}.") else f"{_BACKBONE}.{name}"


_NATIVE = tensor_writer(config_to_hf, rename=_published_name)
FORMAT = backbone_format(
    matches,
    read_config,
    treeflash_leaves,
    _NATIVE,
    _NATIVE,
    lambda config: False,
    layout=layout,
    default_layers=default_layers,
    writers={"treeflash": _NATIVE},
)
