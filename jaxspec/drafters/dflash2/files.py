"""Read and write a DFlash2 drafter's directory: z-lab's DFlash layout or the speculators schema, with
further entries and the tensors of convolutions and selector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters.dflash import speculators, weights
from jaxspec.drafters.dflash.files import write_with_target
from jaxspec.drafters.dflash.hf_config import block_fields, drafter_config_to_hf
from jaxspec.drafters.dflash.layouts import default_layers
from jaxspec.drafters.dflash2.config import DFlash2Config
from jaxspec.drafters.dflash2.network import DFlash2
from jaxspec.drafters.draft_vocab_weights import open_drafter, pad_tables
from jaxspec.drafters.format import About, Format, write_directory
from jaxspec.drafters.hf_fields import check_fits, main_dtype
from jaxspec.io.files.tensors import Tensors
from jaxspec.io.weights.config_entries import COUNT, POSITIVE, field
from jaxspec.io.weights.weight_map import Leaf, check_fit, linear
from jaxspec.targets.weights import is_rotary_table

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
    known = about.num_layers, about.max_positions, dtype, about.provenance
    hf = drafter_config_to_hf(config, *known)
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
    known = about.num_layers, about.max_positions, dtype, about.provenance, about.architecture
    hf = speculators.speculators_config_to_hf(config, *known)
    return hf | {
        "architectures": [ARCHITECTURE],
        "speculators_model_type": TYPE,
        "speculators_config": hf["speculators_config"] | {"algorithm": TYPE},
        **{name: getattr(config, name) for name in _SIZES},
    }


def dflash2_leaves(config: DFlash2Config) -> list[Leaf]:
    """List the leaves of all trained weights."""
    leaves, width = weights.drafter_leaves(config), config.hidden_size
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


def init_variables(config: DFlash2Config) -> dict[str, Any]:
    """Initialize the variables of `DFlash2(config)`, for their shapes."""
    row = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))

    def touch(drafter: DFlash2) -> jax.Array:
        keys, values = drafter.context_kv(features, row)
        cache = KVCache(keys.swapaxes(2, 3), values.swapaxes(2, 3), row[0])
        hidden = drafter(jnp.zeros((1, 1, config.hidden_size)), row, cache)
        return drafter.select(row, hidden, row[..., None])

    return DFlash2(config).init(jax.random.key(0), method=touch)


def load_drafter(directory: str | os.PathLike, config: DFlash2Config, dtype: str) -> dict[str, Any]:
    """Read the variables of `DFlash2(config)`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, or weights hold NaN.
    """
    read, skip = _open(directory, config)
    return weights.from_hf(read, config, dtype, skip, leaves=dflash2_leaves(config))


def stored_tensors(
    directory: str | os.PathLike, config: DFlash2Config, borrowed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Read the drafter's tensors by name, in their stored dtypes; errors as `load_drafter`."""
    read, skip = _open(directory, config)
    return weights.stored(read, config, skip, dflash2_leaves(config))


def check_files(directory: str | os.PathLike, config: DFlash2Config) -> None:
    """Raise what `load_drafter` would, but read no weights."""
    read, skip = _open(directory, config)
    weights.check(read, config, skip, leaves=dflash2_leaves(config))


def write_native(
    directory: str | os.PathLike,
    config: DFlash2Config,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write config.json and model.safetensors in z-lab's layout."""
    write_directory(directory, config_to_hf(config, about, main_dtype(tensors)), tensors)


def write_speculators(
    directory: str | os.PathLike,
    config: DFlash2Config,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write the speculators schema, with the target's embeddings and output projection.

    Raises:
      ValueError: the target's name or one of its tensors is unknown, or the schema cannot
        describe the drafter.
    """
    hf = speculators_config_to_hf(config, about, main_dtype(tensors))
    write_with_target(directory, hf, config, tensors, about)


def borrowed(config: DFlash2Config, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter, see `Format.borrowed`."""
    return speculators.BORROWED if hf is not None and speculators.is_speculators(hf) else {}


def _open(
    directory: str | os.PathLike, config: DFlash2Config
) -> tuple[Tensors, Callable[[str], bool]]:
    """Open the weights: (tensors by name, whether one of another name may be present)."""
    read = open_drafter(directory, config)
    copies = speculators.borrowed_leaves(config, read)
    names = {name for leaf in copies for name, *_ in leaf.parts()}
    check_fit(copies, read, lambda name: True)
    return read, lambda name: name in names or is_rotary_table(name)


def _write(
    directory: str | os.PathLike, config: DFlash2Config, variables: Mapping[str, Any], about: About
) -> None:
    tensors = weights.to_hf(variables, config, dflash2_leaves(config))
    write_native(directory, config, tensors, about)


def _fit(config: DFlash2Config, target: TargetConfig) -> DFlash2Config:
    check_fits(config, target)
    return config


FORMAT = Format(
    matches,
    read_config,
    _fit,
    load_drafter,
    check_files,
    _write,
    default_layers=default_layers,
    pad=pad_tables,
    stored=stored_tensors,
    borrowed=borrowed,
    writers={"dflash2": write_native, "speculators": write_speculators},
)
