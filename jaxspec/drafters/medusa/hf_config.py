"""config.json of published Medusa heads, to and from `MedusaConfig`.

The authors' layout, which is read and written, states neither the target's sizes nor whether the
heads share the target's projection. `for_target` fills in the sizes, and the `jaxspec` object says
the rest. vLLM's layout is read and not written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import Layers, own_fields, score_temperature
from jaxspec.drafters.medusa.network import MedusaConfig
from jaxspec.targets.families.hf_fields import integer


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes Medusa heads, in either layout."""
    return "medusa_num_heads" in hf or _is_vllm(hf)


def config_from_hf(hf: dict[str, Any]) -> MedusaConfig:
    """Read the `MedusaConfig` of a config.json that `matches`.

    If the file does not state them, `hidden_size` and `vocab_size` are 0 and `feature_layers` is
    empty; `for_target` fills them in.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    own = hf.get("jaxspec") or {}
    if _is_vllm(hf):
        return _read_vllm(hf)
    return MedusaConfig(
        hidden_size=_read_size(hf, "hidden_size"),
        heads=integer(hf, "medusa_num_heads"),
        layers=integer(hf, "medusa_num_layers", 1),
        own_projection=bool(own.get("own_projection", True)),
        feature_layers=tuple(own.get("feature_layers") or ()),
        vocab_size=_read_size(hf, "vocab_size"),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(config: MedusaConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json in the authors' layout.

    Medusa's own code reads it if the heads have their own projection.

    Args:
      about: the target.
      dtype: dtype of the weights.
    """
    return {
        "model_type": "medusa",
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.layers,
        "base_model_name_or_path": about.provenance.target or "unknown",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {"own_projection": config.own_projection},
    }


def for_target(config: MedusaConfig, target: TargetConfig) -> MedusaConfig:
    """Return `config` with the target's sizes, which its file may leave out.

    The heads read the hidden state after the target's final norm.

    Raises:
      ValueError: the heads do not fit the target.
    """
    wrong = [
        f"its {name.replace('_', ' ')} is {size}, the target's {getattr(target, name)}"
        for name in ("hidden_size", "vocab_size")
        if (size := getattr(config, name)) and size != getattr(target, name)
    ]
    if config.feature_layers not in ((), (target.num_layers,)):
        wrong.append(
            f"it was made for a target of {config.feature_layers[0]} layers, "
            f"this one has {target.num_layers}"
        )
    if wrong:
        raise ValueError(
            f"the drafter does not fit the target: {'; '.join(wrong)}; "
            "use a drafter trained for this target"
        )
    sizes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    return dataclasses.replace(config, **sizes, feature_layers=(target.num_layers,))


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Say whether a config.json looks like one of Medusa heads."""
    architecture = str((hf.get("architectures") or [""])[0])
    return "medusa_num_heads" in hf or "Medusa" in architecture or hf.get("model_type") == "medusa"


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in."""
    return "vLLM" if "medusa_num_heads" not in hf else "original"


def default_layers(hf: dict[str, Any]) -> Layers:
    """Return no layers: the heads read what the target's final norm makes of the last output."""
    return Layers(None, "none: the heads read the target's last hidden state", "")


def _is_vllm(hf: Mapping[str, Any]) -> bool:
    return (hf.get("architectures") or [None])[0] == "MedusaModel" and "medusa_num_heads" not in hf


def _read_vllm(hf: dict[str, Any]) -> MedusaConfig:
    vocab = integer(hf, "vocab_size")
    if integer(hf, "truncated_vocab_size", vocab) != vocab:
        raise ValueError(
            "config.json: truncated_vocab_size is not supported: use heads of the whole vocabulary"
        )
    sizes = (
        integer(hf, "hidden_size"),
        integer(hf, "num_heads"),
        integer(hf, "num_hidden_layers", 1),
    )
    return MedusaConfig(*sizes, own_projection=not hf.get("original_lm_head"), vocab_size=vocab)


def _read_size(hf: dict[str, Any], name: str) -> int:
    """Read a size of the target; 0 if the file does not state it."""
    return 0 if hf.get(name) is None else integer(hf, name)
