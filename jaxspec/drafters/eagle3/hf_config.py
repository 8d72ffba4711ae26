"""config.json of published EAGLE-3 drafters, to and from `EagleConfig`.

Two layouts are read: the native one of EAGLE, SpecForge, NVIDIA and SGLang, and the speculators
schema of vLLM. An id of a feature layer names the layer's output in `eagle_config` of the native
layout, and the layer's input at the top of the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import (
    Layers,
    check_fits,
    draft_vocab_size,
    layer_inputs,
    own_fields,
    score_temperature,
    sizes_to_hf,
    speculators_to_hf,
)
from jaxspec.targets.families.hf_fields import integer, transformer_fields

ARCHITECTURE = "LlamaForCausalLMEagle3"
_IDS = "eagle_aux_hidden_state_layer_ids"
# Flags of the norms before the fusion, in either layout -> `EagleConfig.fusion_norm`.
_FUSION_NORMS = {"norm_before_fc": "whole", "fc_norm": "each"}
# Entries of NVIDIA's `eagle_config`, with the values that EAGLE-3 has.
_NVIDIA = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes an EAGLE-3 drafter, in either layout.

    Exporters call it `LlamaForCausalLMEagle3`, `Eagle3LlamaForCausalLM`, `Eagle3DraftModel`, …, and
    the authors like the target, from which its draft vocabulary distinguishes it.
    """
    if "speculators_model_type" in hf:
        return _is_speculators(hf)
    named = str((hf.get("architectures") or [""])[0])
    plain = not named or named.endswith("ForCausalLM")
    return "eagle" in named.lower() or "eagle_config" in hf or (plain and "draft_vocab_size" in hf)


def config_from_hf(hf: dict[str, Any]) -> EagleConfig:
    """Read the `EagleConfig` of a config.json that `matches`.

    `feature_layers` is empty if the file does not state them; `for_target` fills them in.

    Raises:
      ValueError: a field is missing, a setting is not supported, or readers disagree about the
        default of a setting that the file leaves out.
    """
    speculators = _is_speculators(hf)
    layer = hf.get("transformer_layer_config") if speculators else hf
    if not isinstance(layer, dict) or layer.get("model_type", "llama") != "llama":
        found = layer.get("model_type") if isinstance(layer, dict) else layer
        raise ValueError(
            f"config.json: an EAGLE-3 drafter's layer must be of model_type 'llama', not {found!r}"
        )
    _check_network(hf, layer)
    fields = transformer_fields(layer)
    if fields["num_layers"] != 1:
        raise ValueError(
            f"config.json: num_hidden_layers is {fields['num_layers']}, "
            "and an EAGLE-3 drafter has 1 layer"
        )
    vocab, own = integer(layer, "vocab_size"), hf.get("jaxspec") or {}
    width = integer(hf, "target_hidden_size", fields["hidden_size"])
    # Readers take the target's embeddings wherever they fit, unless they were trained.
    trained = hf.get("embed_requires_grad") or own.get("own_embeddings")
    return EagleConfig(
        **fields,
        qk_norm=False,
        feature_layers=_read_feature_layers(hf),
        target_hidden_size=width,
        own_embeddings=vocab if trained or width != fields["hidden_size"] else 0,
        vocab_size=vocab,
        draft_vocab_size=draft_vocab_size(hf, vocab),
        depth=integer(own, "depth", EagleConfig.depth),
        norm_before_residual=_read_norm_before_residual(hf, speculators),
        fusion_norm=_read_fusion_norm(hf),
        norm_output=_read_norm_output(hf, speculators),
        window=_read_window(layer),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(config: EagleConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json in the native layout, which SpecForge, SGLang and vLLM read.

    Args:
      about: the target.
      dtype: dtype of the weights.

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
        **sizes_to_hf(config, about.max_positions, dtype),
        "eagle_config": {_IDS: list(config.feature_layers), "use_aux_hidden_state": True},
        # Readers differ in their defaults, so the file states these. It leaves `norm_output` out
        # where it can: SpecForge means the norm before the projection and defaults to true, engines
        # mean a norm of what is fed back and default to false.
        **_flags(config),
        **({"norm_output": True} if config.norm_output else {}),
        **_describe_window(config),
        "norm_before_residual": config.norm_before_residual,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {"depth": config.depth, "own_embeddings": bool(config.own_embeddings)},
    }


def speculators_config_to_hf(config: EagleConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json in the speculators schema, which speculators and vLLM read.

    All flags are written, since readers differ in their defaults.

    Raises:
      ValueError: the target's name is unknown.
    """
    native = config_to_hf(config, about, dtype)
    outer = ("architectures", "draft_vocab_size", "target_hidden_size", "eagle_config", "jaxspec")
    outer += ("norm_before_residual", "norm_output", *_FUSION_NORMS)
    shared = speculators_to_hf(
        "eagle3", "Eagle3Speculator", config.depth, about.provenance, about.architecture
    )
    return shared | {
        "draft_vocab_size": native["draft_vocab_size"],
        "target_hidden_size": config.target_hidden_size,
        _IDS: [layer + 1 for layer in config.feature_layers],
        "norm_before_residual": config.norm_before_residual,
        **_flags(config),
        "norm_output": config.norm_output,
        "embed_requires_grad": bool(config.own_embeddings),
        "tie_word_embeddings": False,
        "transformer_layer_config": {k: v for k, v in native.items() if k not in outer},
        "dtype": dtype,
        "torch_dtype": dtype,
        "jaxspec": native["jaxspec"],
    }


def _flags(config: EagleConfig) -> dict[str, bool]:
    return {name: config.fusion_norm == kind for name, kind in _FUSION_NORMS.items()}


def _describe_window(config: EagleConfig) -> dict[str, Any]:
    if config.window is None:
        return {}
    return {"layer_types": ["sliding_attention"], "sliding_window": config.window}


def default_feature_layers(num_target_layers: int) -> tuple[int, int, int]:
    """Choose EAGLE-3's feature layers: the outputs of layers 1, L // 2 - 1 and L - 4, 0-based.

    Raises:
      ValueError: there are fewer than 7 layers, so that the three would not differ.
    """
    if num_target_layers < 7:
        raise ValueError(
            "EAGLE-3's default feature layers need a target of at least 7 layers, "
            f"not {num_target_layers}"
        )
    return 1, num_target_layers // 2 - 1, num_target_layers - 4


def for_target(config: EagleConfig, target: TargetConfig) -> EagleConfig:
    """Return `config` with EAGLE-3's default feature layers if its file stated none.

    Layers that end behind the target's last one were counted by their inputs, as NVIDIA's third
    drafter of gpt-oss-120b counts them.

    Raises:
      ValueError: the drafter does not fit the target, or the default is not defined for it.
    """
    layers = config.feature_layers or default_feature_layers(target.num_layers)
    if max(layers) == target.num_layers and min(layers) > 0:
        layers = tuple(layer - 1 for layer in layers)
    return check_fits(dataclasses.replace(config, feature_layers=layers), target)


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Say whether a config.json looks like an EAGLE-3 drafter's.

    Some published drafters call themselves LlamaForCausalLM; `names` of tensors decide then.
    """
    architecture = str((hf.get("architectures") or [""])[0])
    plain = "eagle" not in architecture.lower() and "eagle_config" not in hf
    fused = any(name in names for name in ("fc.weight", "model.fc.weight"))
    return matches(hf) and (fused or not plain)


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the native layout that a directory is in."""
    layer = "midlayer" if any(name.startswith("midlayer.") for name in names) else "layers.0"
    return f"native ({layer}{', NVIDIA eagle_config' if 'eagle_config' in hf else ''})"


def default_layers(hf: dict[str, Any]) -> Layers:
    """Return the layers that readers assume if config.json states none."""
    default = (
        "default of a target of N layers: inputs of layers 2, N//2, N-3 (outputs of 1, N//2-1, N-4)"
    )
    count = hf.get("num_target_layers")
    return layer_inputs([2, count // 2, count - 3], default) if count else Layers(None, default, "")


def borrowed(config: EagleConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter (see
    `jaxspec.drafters.format.Format`): the embeddings, in the speculators schema.
    """
    if hf is None or not _is_speculators(hf) or config.own_embeddings:
        return {}
    return {"embed_tokens.weight": "model.embed_tokens.weight"}


def _check_network(hf: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Raise a ValueError if a setting makes it another network than EAGLE-3's."""
    used = ["mlp_bias"] if layer.get("mlp_bias") else []
    own = hf.get("eagle_config") or {}
    used += [
        f"eagle_config.{name} = {own[name]!r}"
        for name, value in _NVIDIA.items()
        if own.get(name) is not None and own[name] != value
    ]
    if used:
        raise ValueError(
            f"config.json: {used[0]} is not supported: it makes another network than EAGLE-3's"
        )


def _is_speculators(hf: Mapping[str, Any]) -> bool:
    return hf.get("speculators_model_type") == "eagle3"


def _read_feature_layers(hf: Mapping[str, Any]) -> tuple[int, ...]:
    """Read the 0-based layers whose outputs the drafter reads; () if the file states none."""
    for holder, name, shift in (
        (hf.get("jaxspec"), "feature_layers", 0),
        (hf.get("eagle_config"), _IDS, 0),
        (hf, _IDS, 1),
    ):
        ids = (holder or {}).get(name)
        if ids is None or ids == []:
            continue
        if not isinstance(ids, list) or not all(type(i) is int and i >= shift for i in ids):
            raise ValueError(
                f"config.json: {name} must be target layers, {shift} or higher, not {ids!r}"
            )
        return tuple(i - shift for i in ids)
    return ()


def _read_fusion_norm(hf: Mapping[str, Any]) -> str | None:
    """Read the norm before the fusion, from the top of the file or NVIDIA's `eagle_config`."""
    own = hf.get("eagle_config") or {}
    found = [kind for name, kind in _FUSION_NORMS.items() if hf.get(name) or own.get(name)]
    if len(found) > 1:
        raise ValueError("config.json: norm_before_fc and fc_norm exclude each other")
    return found[0] if found else None


def _read_norm_output(hf: Mapping[str, Any], speculators: bool) -> bool:
    """Read whether outputs are fed back after the final norm.

    SpecForge's flag of this name means the norm before the projection, which all drafters have: in
    the native layout it counts only beside one of EAGLE-3.1's norms.
    """
    value = bool(hf.get("norm_output"))
    if value and not speculators and _read_fusion_norm(hf) is None:
        raise ValueError(
            "config.json: norm_output means the norm before the output projection in SpecForge's "
            "files, and a norm of what is fed back in engines': leave it out if the drafter was "
            "trained by SpecForge"
        )
    return value


def _read_window(layer: Mapping[str, Any]) -> int | None:
    slides = layer.get("layer_types") == ["sliding_attention"]
    return integer(dict(layer), "sliding_window") if slides else None


def _read_norm_before_residual(hf: Mapping[str, Any], speculators: bool) -> bool:
    value = hf.get("norm_before_residual", None if speculators else False)
    if not isinstance(value, bool):
        raise ValueError(
            "config.json lacks 'norm_before_residual', and readers disagree about its default: "
            "add true or false, as the drafter was trained"
        )
    return value
