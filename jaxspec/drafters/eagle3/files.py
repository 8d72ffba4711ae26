"""EAGLE-3 drafters as published, to and from `EagleConfig` and the variables of `EagleDrafter`.

Two layouts are read: the native one of EAGLE, SpecForge and SGLang, which is also written, and the
speculators schema of vLLM. They differ in the layer's name, and in what an id of a feature layer
means: the output of that layer in `eagle_config` of the former, its input in the latter.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3.config import EagleConfig
from jaxspec.drafters.feature_layers import Layers, layer_inputs
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.hf_fields import check_fits, draft_vocab_size, own_fields, score_temperature
from jaxspec.io.draft_vocab import MAPPING, mapping_tensors, read_ids
from jaxspec.io.tensors import Tensors
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import Leaf, check_fit, linear, read_tree, vector, write_tree
from jaxspec.targets.hf_fields import integer, transformer_fields, transformer_fields_to_hf

ARCHITECTURE = "LlamaForCausalLMEagle3"
# The authors' own files name the target's architecture, and are told from a target by their draft
# vocabulary.
_UNNAMED = "LlamaForCausalLM"
_IDS = "eagle_aux_hidden_state_layer_ids"
# Settings of EAGLE-3.1 and of speculators that make it another network.
_UNSUPPORTED = ("fc_norm", "norm_before_fc", "norm_output", "embed_requires_grad", "mlp_bias")


def matches(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an EAGLE-3 drafter, in either layout."""
    named = (hf.get("architectures") or [None])[0]
    return (
        _speculators(hf)
        or named == ARCHITECTURE
        or (named == _UNNAMED and "draft_vocab_size" in hf)
    )


def config_from_hf(hf: dict[str, Any]) -> EagleConfig:
    """The `EagleConfig` of a config.json that `matches`.

    Its `feature_layers` are empty where the file does not state them, see `for_target`.

    Raises:
      ValueError: a missing field, a setting that is not supported, or one whose default readers
        disagree about.
    """
    speculators = _speculators(hf)
    layer = hf.get("transformer_layer_config") if speculators else hf
    if not isinstance(layer, dict) or layer.get("model_type") != "llama":
        found = layer.get("model_type") if isinstance(layer, dict) else layer
        raise ValueError(
            f"config.json: an EAGLE-3 drafter's layer must be of model_type 'llama', not {found!r}"
        )
    used = next((name for name in _UNSUPPORTED if hf.get(name) or layer.get(name)), None)
    if used:
        raise ValueError(
            f"config.json: {used} is not supported: it makes another network than EAGLE-3's"
        )
    fields = transformer_fields(layer)
    if fields["num_layers"] != 1:
        raise ValueError(
            f"config.json: num_hidden_layers is {fields['num_layers']}, and an EAGLE-3 drafter has 1 layer"
        )
    vocab = integer(layer, "vocab_size")
    return EagleConfig(
        **fields,
        qk_norm=False,
        feature_layers=_feature_layers(hf),
        target_hidden_size=integer(hf, "target_hidden_size", fields["hidden_size"]),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab_size(hf, vocab),
        depth=integer(hf.get("jaxspec") or {}, "depth", EagleConfig.depth),
        norm_before_residual=_norm_before_residual(hf, speculators),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(config: EagleConfig, about: About, dtype: str) -> dict[str, Any]:
    """A config.json in the native layout, which SpecForge, SGLang and vLLM read.

    Args:
      about: the target. dtype: of the weights.

    Raises:
      ValueError: the layer has q/k norms, for which the layout has no place.
    """
    if config.qk_norm:
        raise ValueError(
            "the native layout of EAGLE-3 has no q/k norms: make the drafter with qk_norm=False"
        )
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "max_position_embeddings": about.max_positions,
        "tie_word_embeddings": False,
        "eagle_config": {_IDS: list(config.feature_layers), "use_aux_hidden_state": True},
        # Defaults differ between readers, so both are said. `norm_output` is not: SpecForge means
        # by it the norm before the projection and takes it to be true, engines mean a norm of what
        # is fed back and take it to be false.
        "fc_norm": False,
        "norm_before_residual": config.norm_before_residual,
        "jaxspec": own_fields(config, about.num_layers, about.provenance) | {"depth": config.depth},
    }


def default_feature_layers(num_target_layers: int) -> tuple[int, int, int]:
    """EAGLE-3's choice: the outputs of layers 1, L // 2 - 1 and L - 4, 0-based.

    Raises:
      ValueError: fewer than 7 layers, of which that would not be three different ones.
    """
    if num_target_layers < 7:
        raise ValueError(
            f"EAGLE-3's default feature layers need a target of at least 7 layers, not {num_target_layers}"
        )
    return 1, num_target_layers // 2 - 1, num_target_layers - 4


def for_target(config: EagleConfig, target: TargetConfig) -> EagleConfig:
    """`config` with EAGLE-3's default feature layers where its file stated none.

    Raises:
      ValueError: the drafter does not fit the target, or the default is not defined for it.
    """
    layers = config.feature_layers or default_feature_layers(target.num_layers)
    config = dataclasses.replace(config, feature_layers=layers)
    check_fits(config, target)
    return config


def read(directory: str | os.PathLike, config: EagleConfig, dtype: str) -> dict[str, Any]:
    """Variables of `EagleDrafter(config)`, with the ids of a reduced vocabulary in `draft` (see
    `jaxspec.drafters.base`).

    Args:
      directory: model.safetensors or pytorch_model.bin, in either layout. dtype: of all weights.

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, NaN, or a wrong map of draft tokens.
    """
    found = _native_names(open_weights(directory))
    ids = _check(found, config)
    variables = read_tree(leaves(config), found, dtype, lambda name: True)
    return (
        variables
        if config.draft_vocab_size is None
        else variables | {"draft": {"ids": jnp.asarray(ids)}}
    )


def check(directory: str | os.PathLike, config: EagleConfig) -> None:
    """Raise what `read` would, short of reading weights."""
    _check(_native_names(open_weights(directory)), config)


def tensors(variables: Mapping[str, Any], config: EagleConfig) -> dict[str, np.ndarray]:
    """Tensors by native name, in the variables' dtype; `d2t` and `t2d` only with a reduced
    vocabulary.
    """
    written = write_tree(leaves(config), variables)
    if config.draft_vocab_size is None:
        return written
    return written | mapping_tensors(
        np.asarray(jax.device_get(variables["draft"]["ids"])), config.vocab_size
    )


def leaves(config: EagleConfig) -> list[Leaf]:
    """The table of all trained weights."""
    width, queries, keys = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    # A published file that states no layers has three of them.
    features = (len(config.feature_layers) or 3) * config.target_hidden_size
    attention, mlp, bias = "midlayer.self_attn", "midlayer.mlp", config.attention_bias
    head = ((config.draft_vocab_size or config.vocab_size, width),)
    return [
        *linear(("fc",), ["fc"], features, [width], False),
        vector(("token_norm",), "midlayer.input_layernorm", width),
        vector(("feature_norm",), "midlayer.hidden_norm", width),
        *linear(("attention", "q"), [f"{attention}.q_proj"], 2 * width, [queries], bias),
        *linear(
            ("attention", "kv"),
            [f"{attention}.k_proj", f"{attention}.v_proj"],
            2 * width,
            [keys, keys],
            bias,
        ),
        *linear(("attention", "o"), [f"{attention}.o_proj"], queries, [width], bias),
        vector(("mlp_norm",), "midlayer.post_attention_layernorm", width),
        *linear(
            ("mlp", "gate_up"),
            [f"{mlp}.gate_proj", f"{mlp}.up_proj"],
            width,
            [config.ffn_size] * 2,
            False,
        ),
        *linear(("mlp", "down"), [f"{mlp}.down_proj"], config.ffn_size, [width], False),
        vector(("norm",), "norm", width),
        Leaf(("lm_head",), (("lm_head.weight",),), head, transpose=True),
    ]


def _check(found: Mapping[str, np.ndarray], config: EagleConfig) -> np.ndarray:
    """Names, shapes and dtypes of the tensors, and the map of draft tokens, whose target ids are
    returned.

    The target's embedding table may go along, and the map of a whole vocabulary, which changes
    nothing.
    """
    embedding = Leaf(
        ("embedding",),
        (("embed_tokens.weight",),),
        ((config.vocab_size, config.target_hidden_size),),
    )
    wanted = leaves(config) + ([embedding] if "embed_tokens.weight" in found else [])
    check_fit(wanted, found, lambda name: name in MAPPING or name.endswith("rotary_emb.inv_freq"))
    if config.draft_vocab_size is None and not any(name in found for name in MAPPING):
        return np.arange(config.vocab_size)
    return read_ids(found, config.draft_vocab_size or config.vocab_size, config.vocab_size)


class _Renamed(Tensors):
    """A view of tensors whose layer is called `layers.0` (speculators, vLLM)."""

    def __init__(self, read: Tensors):
        self._read = read
        self._home = {name.replace("layers.0.", "midlayer.", 1): name for name in read}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read[self._home[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._read.shape(self._home[name])

    def dtype(self, name: str) -> str:
        return self._read.dtype(self._home[name])


def _native_names(found: Tensors) -> Tensors:
    return _Renamed(found) if not any(name.startswith("midlayer.") for name in found) else found


def _speculators(hf: Mapping[str, Any]) -> bool:
    return hf.get("speculators_model_type") == "eagle3"


def _feature_layers(hf: Mapping[str, Any]) -> tuple[int, ...]:
    """0-based layers whose outputs are read, or () where the file says nothing of them."""
    for holder, name, shift in (
        (hf.get("jaxspec"), "feature_layers", 0),
        (hf.get("eagle_config"), _IDS, 0),
        (hf, _IDS, 1),
    ):
        ids = (holder or {}).get(name)
        if ids is None:
            continue
        if (
            not isinstance(ids, list)
            or not ids
            or not all(type(i) is int and i >= shift for i in ids)
        ):
            raise ValueError(
                f"config.json: {name} must be target layers, {shift} or higher, not {ids!r}"
            )
        return tuple(i - shift for i in ids)
    return ()


def _norm_before_residual(hf: Mapping[str, Any], speculators: bool) -> bool:
    value = hf.get("norm_before_residual", None if speculators else False)
    if not isinstance(value, bool):
        raise ValueError(
            "config.json lacks 'norm_before_residual', and readers disagree about its default: add true or false, as the "
            "drafter was trained"
        )
    return value


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Whether a config.json looks like an EAGLE-3 drafter's; some published ones call themselves
    LlamaForCausalLM.
    """
    architecture = str((hf.get("architectures") or [""])[0])
    plain = architecture.endswith("ForCausalLM") or not architecture
    reduced = "draft_vocab_size" in hf and "fc.weight" in names
    return "Eagle3" in architecture or "eagle_config" in hf or (plain and reduced)


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Which of the native layouts."""
    layer = "midlayer" if any(name.startswith("midlayer.") for name in names) else "layers.0"
    return f"native ({layer}{', NVIDIA eagle_config' if 'eagle_config' in hf else ''})"


def default_layers(hf: dict[str, Any]) -> Layers:
    """The layers that readers assume where config.json states none."""
    default = (
        "default of a target of N layers: inputs of layers 2, N//2, N-3 (outputs of 1, N//2-1, N-4)"
    )
    count = hf.get("num_target_layers")
    return layer_inputs([2, count // 2, count - 3], default) if count else Layers(None, default, "")


def borrowed(config: EagleConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """See `jaxspec.drafters.format.Format`; the speculators schema saves the target's
    embeddings.
    """
    if hf is None or not _speculators(hf):
        return {}
    return {"embed_tokens.weight": "model.embed_tokens.weight"}


FORMAT = Format(
    matches,
    config_from_hf,
    for_target,
    read,
    check,
    json_writer(config_to_hf, tensors),
    recognise=recognise,
    layout=layout,
    default_layers=default_layers,
    borrowed=borrowed,
)
