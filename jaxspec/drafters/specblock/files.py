"""SpecBlock drafters in the authors' layout, to and from `SpecBlockConfig` and the variables of
`SpecBlock`.

The map of a reduced vocabulary stands among the weights, or beside them in `vocab_mapping.pt`. The
layout says nothing of the feature layers, of how many blocks follow each other and of the
ablations; those stand in this library's own fields.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.feature_layers import Layers, own_layers
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.hf_fields import draft_vocab_size, own_fields, score_temperature
from jaxspec.drafters.specblock.config import SpecBlockConfig
from jaxspec.drafters.specblock.network import RANK_FEATURES
from jaxspec.io.draft_vocab import MAPPING, mapping_tensors, read_ids
from jaxspec.io.tensors import Tensors
from jaxspec.io.torch_files import TorchFile, open_weights
from jaxspec.io.weight_map import Leaf, check_fit, linear, read_tree, vector, write_tree
from jaxspec.targets.hf_fields import integer, transformer_fields, transformer_fields_to_hf
from jaxspec.targets.weights import decoder_layer_leaves

ARCHITECTURE = "LlamaForCausalLMSpecBlock"
_NAMES = (ARCHITECTURE, "LlamaForCausalLMSpecBlockShift")
_MAPPING_FILE = "vocab_mapping.pt"
_FLAGS = ("prefix_broadcast", "shift", "qk_norm")

# Feature layers that a file does not state are EAGLE-3's.
for_target = eagle.for_target


def matches(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a SpecBlock drafter."""
    return (hf.get("architectures") or [None])[0] in _NAMES


def config_from_hf(hf: dict[str, Any]) -> SpecBlockConfig:
    """The `SpecBlockConfig` of a config.json that `matches`.

    Its `feature_layers` are empty where the file does not state them, see `for_target`. `head_dim`
    is always the width divided by the heads, whatever the file says, as in the authors' code.
    `num_ttt_blocks` counts blocks in training and is not read.

    Raises:
      ValueError: a missing field, or a setting that is not supported.
    """
    own = hf.get("jaxspec") or {}
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    if hidden % heads:
        raise ValueError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    vocab = integer(hf, "vocab_size")
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
        feature_layers=_feature_layers(own),
        target_hidden_size=integer(hf, "target_hidden_size", hidden),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab_size(hf, vocab),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(config: SpecBlockConfig, about: About, dtype: str) -> dict[str, Any]:
    """A config.json in the authors' layout.

    Args:
      about: the target. dtype: of the weights.

    Raises:
      ValueError: heads that do not divide the width, which the layout cannot say.
    """
    if config.head_dim * config.num_heads != config.hidden_size:
        raise ValueError(
            f"SpecBlock's layout makes head_dim hidden_size / heads, and {config.num_heads} heads of {config.head_dim} are not "
            f"{config.hidden_size} wide: make the drafter with head_dim={config.hidden_size // config.num_heads}"
        )
    sizes = ("blocks", "rank_hidden", "rank_top", *_FLAGS)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "max_position_embeddings": about.max_positions,
        "tie_word_embeddings": False,
        "diffspec_draft_token_num": config.slots,
        "rank_classes": config.rank_classes,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {name: getattr(config, name) for name in sizes},
    }


def read(directory: str | os.PathLike, config: SpecBlockConfig, dtype: str) -> dict[str, Any]:
    """Variables of `SpecBlock(config)`, with the ids of a reduced vocabulary in `draft` (see
    `jaxspec.drafters.base`).

    Args:
      directory: model.safetensors or pytorch_model.bin, and vocab_mapping.pt where the map is not
        among the weights.
      dtype: of all weights.

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, NaN, or a wrong map of draft tokens.
    """
    found = _open(Path(directory))
    ids = _check(found, config)
    variables = read_tree(leaves(config), found, dtype, lambda name: True)
    return (
        variables
        if config.draft_vocab_size is None
        else variables | {"draft": {"ids": jnp.asarray(ids)}}
    )


def check(directory: str | os.PathLike, config: SpecBlockConfig) -> None:
    """Raise what `read` would, short of reading weights."""
    _check(_open(Path(directory)), config)


def tensors(variables: Mapping[str, Any], config: SpecBlockConfig) -> dict[str, np.ndarray]:
    """Tensors by the authors' names, in the variables' dtype, and `d2t` and `t2d`, which their code
    always reads.
    """
    if config.draft_vocab_size is None:
        ids = np.arange(config.vocab_size)
    else:
        ids = np.asarray(jax.device_get(variables["draft"]["ids"]))
    return write_tree(leaves(config), variables) | mapping_tensors(ids, config.vocab_size)


def leaves(config: SpecBlockConfig) -> list[Leaf]:
    """The table of all trained weights."""
    width, head = config.hidden_size, config.draft_vocab_size or config.vocab_size
    # A published file that states no layers has three of them.
    features = (len(config.feature_layers) or 3) * config.target_hidden_size
    table = [
        *linear(("condition_proj",), ["input_layer.condition_proj"], features, [width], False),
        *(
            vector((f"{x}_norm",), f"input_layer.{x}_norm", width)
            for x in ("condition", "token", "query")
        ),
        Leaf(("queries",), (("input_layer.position_queries.weight",),), ((config.slots, width),)),
        Leaf(("fuse",), (("input_layer.fuse.weight",),), ((width, 3 * width),), transpose=True),
        vector(("norm",), "norm", width),
        Leaf(("lm_head",), (("lm_head.weight",),), ((head, width),), transpose=True),
        *linear(
            ("rank_inner",), ["rank_head.0"], width + RANK_FEATURES, [config.rank_hidden], False
        ),
        *linear(("rank_outer",), ["rank_head.2"], config.rank_hidden, [config.rank_classes], False),
    ]
    for i in range(config.num_layers):
        table += decoder_layer_leaves(config, i, "")
    for i in range(config.num_layers - 1 if config.shift else 0):
        table += linear((f"shifts_{i}",), [f"shift_proj.{i}"], 2 * width, [width], False)
    return table


class _WithMapping(Tensors):
    """Weights and the tensors of `vocab_mapping.pt` as one."""

    def __init__(self, weights: Tensors, mapping: Tensors):
        self._home = {name: weights for name in weights} | {
            name: mapping for name in MAPPING if name in mapping
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._home[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home[name].shape(name)

    def dtype(self, name: str) -> str:
        return self._home[name].dtype(name)


def _open(directory: Path) -> Tensors:
    weights, mapping = open_weights(directory), directory / _MAPPING_FILE
    if all(name in weights for name in MAPPING) or not mapping.is_file():
        return weights
    return _WithMapping(weights, TorchFile(mapping))


def _check(found: Mapping[str, np.ndarray], config: SpecBlockConfig) -> np.ndarray:
    """Names, shapes and dtypes of the tensors, and the map of draft tokens, whose target ids are
    returned.

    The map of a whole vocabulary may go along, which changes nothing.
    """
    check_fit(
        leaves(config), found, lambda name: name in MAPPING or name.endswith("rotary_emb.inv_freq")
    )
    if config.draft_vocab_size is None and not any(name in found for name in MAPPING):
        return np.arange(config.vocab_size)
    return read_ids(found, config.draft_vocab_size or config.vocab_size, config.vocab_size)


def _feature_layers(own: Mapping[str, Any]) -> tuple[int, ...]:
    layers = own.get("feature_layers", [])
    if not isinstance(layers, list) or not all(type(i) is int and i >= 0 for i in layers):
        raise ValueError(
            f"config.json: jaxspec.feature_layers must be target layers, 0 or higher, not {layers!r}"
        )
    return tuple(layers)


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Whether a config.json looks like a SpecBlock drafter's."""
    architecture = str((hf.get("architectures") or [""])[0])
    return "SpecBlock" in architecture or "diffspec_draft_token_num" in hf or "rank_classes" in hf


def default_layers(hf: dict[str, Any]) -> Layers:
    """The layers that this library has written, or else those that EAGLE-3 assumes."""
    return own_layers(hf) or eagle.default_layers(hf)


FORMAT = Format(
    matches,
    config_from_hf,
    for_target,
    read,
    check,
    json_writer(config_to_hf, tensors),
    recognise=recognise,
    default_layers=default_layers,
    side_files=(_MAPPING_FILE,),
)
