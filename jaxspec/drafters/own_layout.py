"""What the layouts of ParallelSpec and Falcon share: drafters of which no weights are published, so
that the layout is ours.

A directory holds config.json, whose `architectures` names the method and whose `jaxspec` object
holds what Llama's fields do not, and model.safetensors: linear weights [out, in], and `d2t` and
`t2d` of a reduced draft vocabulary (see `draft_vocab`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import check_fits, draft_vocab_size, own_fields, score_temperature
from jaxspec.io.draft_vocab import MAPPING, mapping_tensors, read_ids
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import Leaf, check_fit, linear, read_tree, vector, write_tree
from jaxspec.targets.hf_fields import integer, transformer_fields, transformer_fields_to_hf


def config_from_hf(hf: dict[str, Any], config_class: type, sizes: tuple[str, ...]):
    """The config of class `config_class`, whose integer fields `sizes` stand in the `jaxspec`
    object.

    Raises:
      ValueError: a missing field, or a setting that is not supported.
    """
    own, fields = hf.get("jaxspec") or {}, transformer_fields(hf)
    vocab, layers = integer(hf, "vocab_size"), own.get("feature_layers")
    if (
        not isinstance(layers, list)
        or not layers
        or not all(type(layer) is int and layer >= 0 for layer in layers)
    ):
        raise ValueError(
            f"config.json: jaxspec.feature_layers must be a list of target layers, not {layers!r}"
        )
    return config_class(
        **fields,
        **{name: integer(own, name) for name in sizes},
        qk_norm=bool(own.get("qk_norm", False)),
        feature_layers=tuple(layers),
        target_hidden_size=integer(hf, "target_hidden_size", fields["hidden_size"]),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab_size(hf, vocab),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(
    config: Any, architecture: str, sizes: tuple[str, ...], about: About, dtype: str
) -> dict[str, Any]:
    """Inverse of `config_from_hf`; `dtype` is that of the weights."""
    own = {name: getattr(config, name) for name in (*sizes, "qk_norm")}
    return {
        "architectures": [architecture],
        "model_type": "jaxspec",
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "max_position_embeddings": about.max_positions,
        "tie_word_embeddings": False,
        "jaxspec": own_fields(config, about.num_layers, about.provenance) | own,
    }


def for_target(config: Any, target: TargetConfig) -> Any:
    """`config` itself; ValueError where it does not fit the target."""
    check_fits(config, target, final_norm=True)
    return config


def read(
    directory: str | os.PathLike, config: Any, leaves: list[Leaf], dtype: str
) -> dict[str, Any]:
    """Variables, with the ids of a reduced vocabulary in `draft` (see `jaxspec.drafters.base`).

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, NaN, or a wrong map of draft tokens.
    """
    found = open_weights(directory)
    ids = _check(found, config, leaves)
    variables = read_tree(leaves, found, dtype, lambda name: True)
    return variables if ids is None else variables | {"draft": {"ids": jnp.asarray(ids)}}


def check(directory: str | os.PathLike, config: Any, leaves: list[Leaf]) -> None:
    """Raise what `read` would, short of reading weights."""
    _check(open_weights(directory), config, leaves)


def tensors(variables: Mapping[str, Any], config: Any, leaves: list[Leaf]) -> dict[str, np.ndarray]:
    """Tensors by name, in the variables' dtype."""
    written = write_tree(leaves, variables)
    if config.draft_vocab_size is None:
        return written
    return written | mapping_tensors(
        np.asarray(jax.device_get(variables["draft"]["ids"])), config.vocab_size
    )


def layer_leaves(config: Any, path: tuple[str, ...], inputs: int) -> list[Leaf]:
    """Attention and feed-forward of the drafter's layer at `path` of the tree, the former reading
    `inputs` components.
    """
    queries, keys, bias = (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
        config.attention_bias,
    )
    attention, width = (*path, "attention"), config.hidden_size
    leaves = [
        *linear((*attention, "q"), ["self_attn.q_proj"], inputs, [queries], bias),
        *linear(
            (*attention, "kv"), ["self_attn.k_proj", "self_attn.v_proj"], inputs, [keys, keys], bias
        ),
        *linear((*attention, "o"), ["self_attn.o_proj"], queries, [width], bias),
        vector((*path, "mlp_norm"), "post_attention_layernorm", width),
        *linear(
            (*path, "mlp", "gate_up"),
            ["mlp.gate_proj", "mlp.up_proj"],
            width,
            [config.ffn_size] * 2,
            False,
        ),
        *linear((*path, "mlp", "down"), ["mlp.down_proj"], config.ffn_size, [width], False),
    ]
    if config.qk_norm:
        leaves += [
            vector((*attention, f"{x}_norm"), f"self_attn.{x}_norm", config.head_dim) for x in "qk"
        ]
    return leaves


def ends_leaves(config: Any) -> list[Leaf]:
    """What both drafters have before and behind their layer: fusion, input norms, final norm and
    output projection.
    """
    features, width = len(config.feature_layers) * config.target_hidden_size, config.hidden_size
    return [
        *linear(("fc",), ["fc"], features, [width], False),
        *(vector((name,), name, width) for name in ("token_norm", "feature_norm", "norm")),
        Leaf(
            ("lm_head",),
            (("lm_head.weight",),),
            ((config.draft_vocab_size or config.vocab_size, width),),
            transpose=True,
        ),
    ]


def _check(found: Mapping[str, np.ndarray], config: Any, leaves: list[Leaf]) -> np.ndarray | None:
    """Names, shapes and dtypes of the tensors; the token ids of a reduced vocabulary."""
    reduced = config.draft_vocab_size is not None
    check_fit(leaves, found, lambda name: reduced and name in MAPPING)
    return read_ids(found, config.draft_vocab_size, config.vocab_size) if reduced else None
