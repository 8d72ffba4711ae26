"""Weights of EAGLE-3 drafters, to and from the variables of `EagleDrafter`.

The native layout calls the layer `midlayer`; the speculators schema, NVIDIA and vLLM call it
`layers.0`. A drafter of the whole vocabulary may leave its output projection to the target, and any
drafter one of the two tensors that map its draft vocabulary. Embeddings are read if they are the
drafter's own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.draft_vocab_weights import (
    check_weights,
    open_drafter,
    pad_vocabulary,
    read_weights,
    write_weights,
)
from jaxspec.drafters.eagle3 import hf_config
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.format import Format, json_writer, tensor_writer
from jaxspec.drafters.leaves import count_features, list_layer_leaves, make_head_leaf
from jaxspec.io.files.tensors import RenamedTensors, Tensors
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import mapping_tensors, sort_rows
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, linear, read_stored, vector, write_tree
from jaxspec.targets.head import select_columns
from jaxspec.targets.weights import EMBEDDING, HEAD, is_rotary_table

_EMBEDDING = "embed_tokens.weight"
# Copies of the target's tensors that speculators' training keeps beside the drafter.
_COPIES = ("verifier_lm_head.weight", "verifier_norm.weight")


def read(directory: str | os.PathLike, config: EagleConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `EagleDrafter(config)`, see `jaxspec.drafters.base`.

    Args:
      directory: holds model.safetensors or pytorch_model.bin, in either layout.
      dtype: dtype of all weights.

    Returns:
      The variables, without `lm_head` if the files leave it to the target, see `lend`. Embeddings
      of the drafter's own are in the collection `draft`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, or the map of draft tokens is
        wrong.
    """
    found, tied = _open(directory, config), _is_tied(directory)
    ids = _check(found, config, tied)
    variables = read_weights(found, _own_leaves(found, config, tied), ids, dtype)
    if not config.own_embeddings:
        return variables
    table = read_tree([_embedding_leaf(config)], found, dtype, lambda name: True)["params"]
    if HEAD not in found:
        variables["params"]["lm_head"] = table["embedding"].T
    return variables | {"draft": variables.get("draft", {}) | table}


def check(directory: str | os.PathLike, config: EagleConfig) -> None:
    """Raise what `read` would, but read no weights."""
    _check(_open(directory, config), config, _is_tied(directory))


def tensors(variables: Mapping[str, Any], config: EagleConfig) -> dict[str, np.ndarray]:
    """Return tensors by native name, in the variables' dtype.

    `d2t` and `t2d` are among them only if the draft vocabulary is reduced.
    """
    tensors = write_weights(variables, leaves(config), config)
    if not config.own_embeddings:
        return tensors
    return tensors | write_tree([_embedding_leaf(config)], {"params": variables["draft"]})


def lend(
    variables: dict[str, Any], target: Any, config: TargetConfig, directory: str | os.PathLike
) -> dict[str, Any]:
    """Return the variables with the target's output projection if the files leave theirs out.

    Args:
      variables: what `read` returned.
      target: variables of the target.
      config: of the target.
      directory: holds config.json, which says whether the drafter's projection is its embeddings.
    """
    if "lm_head" in variables["params"]:
        return variables
    config = dataclasses.replace(
        config, tie_embeddings=config.tie_embeddings or _is_tied(directory)
    )
    # An array of its own: adaptation may change it.
    head = select_columns(target, config, np.arange(config.vocab_size))
    head = head.astype(target["params"]["norm"]["scale"].dtype)
    return variables | {"params": variables["params"] | {"lm_head": head}}


def pad(config: EagleConfig, rows: int) -> EagleConfig:
    """Return `config` for a target with `rows` embedding rows, see `Format.pad`."""
    config = pad_vocabulary(config, rows)
    return dataclasses.replace(config, own_embeddings=rows if config.own_embeddings else 0)


def leaves(config: EagleConfig) -> list[Leaf]:
    """List the leaves of all trained weights."""
    width = config.hidden_size
    return [
        *_list_fusion_norms(config),
        *linear(("fc",), ["fc"], count_features(config), [width], False),
        vector(("token_norm",), "midlayer.input_layernorm", width),
        vector(("feature_norm",), "midlayer.hidden_norm", width),
        *list_layer_leaves(config, (), 2 * width, "midlayer."),
        vector(("norm",), "norm", width),
        make_head_leaf(config),
    ]


def _list_fusion_norms(config: EagleConfig) -> list[Leaf]:
    """List the leaves of the norms before the fusion."""
    if config.fusion_norm == "whole":
        return [vector(("fusion_norm_0",), "input_norm", count_features(config))]
    count = len(config.feature_layers) or 3
    return [
        vector((f"fusion_norm_{i}",), f"fc_norm.{i}", config.target_hidden_size)
        for i in range(count if config.fusion_norm == "each" else 0)
    ]


def stored_tensors(
    directory: str | os.PathLike, config: EagleConfig, borrowed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Read the drafter's tensors by native name, in their stored dtypes; see `Format.stored`.

    Raises:
      FileNotFoundError, WeightMismatch, ValueError: as `read`.
    """
    found, tied = _open(directory, config), _is_tied(directory)
    ids = _check(found, config, tied)
    wanted = _own_leaves(found, config, tied)
    wanted += [_embedding_leaf(config)] if config.own_embeddings else []
    rows = found if ids is None else sort_rows(found, ids)
    tensors = read_stored(wanted, rows, lambda name: True)
    if HEAD not in tensors:
        name = _EMBEDDING if tied and config.own_embeddings else EMBEDDING if tied else HEAD
        if name not in tensors and name not in borrowed:
            raise ValueError(
                f"{directory} leaves its output projection to the target: give --target"
            )
        tensors[HEAD] = tensors[name] if name in tensors else borrowed[name]
    return tensors if ids is None else tensors | mapping_tensors(np.sort(ids), config.vocab_size)


def _embedding_leaf(config: EagleConfig) -> Leaf:
    """Return the leaf of an embedding table: the drafter's own, or a copy of the target's."""
    rows = config.own_embeddings or config.vocab_size
    return Leaf(("embedding",), ((_EMBEDDING,),), ((rows, config.hidden_size),))


def _is_tied(directory: str | os.PathLike) -> bool:
    """Whether config.json says that the output projection is the transposed embedding table."""
    path = Path(directory) / "config.json"
    return path.is_file() and bool(read_entries(path).get("tie_word_embeddings"))


def _own_leaves(found: Tensors, config: EagleConfig, tied: bool) -> list[Leaf]:
    """List the leaves, without the output projection if `found` may and does leave it out."""
    wanted = leaves(config)
    fits = tied if config.own_embeddings else config.hidden_size == config.target_hidden_size
    left_out = HEAD not in found and config.draft_vocab_size is None and fits
    return [leaf for leaf in wanted if not (left_out and leaf.path == ("lm_head",))]


def _check(found: Tensors, config: EagleConfig, tied: bool) -> np.ndarray | None:
    """Check the tensors; files may also hold the target's embeddings and the map of a whole
    vocabulary.
    """
    unknown = "midlayer.hidden_norm.weight" not in found and "fc.weight" in found
    if unknown and found.shape("fc.weight")[1:] == (2 * config.hidden_size,):
        raise ValueError(
            "the weights are those of an EAGLE or EAGLE-2 drafter (no midlayer.hidden_norm), which "
            "is another network: use an EAGLE-3 drafter"
        )
    wanted = _own_leaves(found, config, tied)
    if config.own_embeddings or _EMBEDDING in found:
        wanted.append(_embedding_leaf(config))
    return check_weights(
        found,
        wanted,
        config,
        ignore=lambda name: name in _COPIES or is_rotary_table(name),
        whole_map=True,
    )


def _open(directory: str | os.PathLike, config: EagleConfig) -> Tensors:
    """Open the weights of a directory under their native names."""
    found = open_drafter(directory, config)
    if any(name.startswith("midlayer.") for name in found):
        return found
    return RenamedTensors(
        found, {name.replace("layers.0.", "midlayer.", 1): name for name in found}
    )


FORMAT = Format(
    hf_config.matches,
    hf_config.config_from_hf,
    hf_config.for_target,
    read,
    check,
    json_writer(hf_config.config_to_hf, tensors),
    recognise=hf_config.recognise,
    layout=hf_config.layout,
    default_layers=hf_config.default_layers,
    borrowed=hf_config.borrowed,
    stored=stored_tensors,
    writers={
        "eagle3": tensor_writer(hf_config.config_to_hf),
        # The schema asks for embeddings, the drafter's own or the target's.
        "speculators": tensor_writer(
            hf_config.speculators_config_to_hf,
            lambda config: {} if config.own_embeddings else {_EMBEDDING: EMBEDDING},
            lambda name: name.replace("midlayer.", "layers.0.", 1),
        ),
    },
    lend=lend,
    pad=pad,
)
