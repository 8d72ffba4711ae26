"""The files of a DSpark drafter: DeepSpec's layout and the speculators schema.

Both save copies of the target's embedding table and output projection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxspec.drafters.dflash.files import backbone_format
from jaxspec.drafters.dflash.speculators import describes_attention, is_speculators, name_borrowed
from jaxspec.drafters.dflash.weights import drafter_leaves
from jaxspec.drafters.dspark import hf_config
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.format import tensor_writer
from jaxspec.io.weights.weight_map import Leaf, linear


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is a DSpark drafter's, or DeepSpec's own DFlash, in any layout."""
    if is_speculators(hf):
        return hf["speculators_model_type"] == hf_config.TYPE
    return "DSpark" in str((hf.get("architectures") or [""])[0]) or "markov_rank" in hf


def read_config(hf: dict[str, Any]) -> DSparkConfig:
    """Read the config of the drafter that a config.json describes, in any layout.

    Raises:
      ValueError: it describes no drafter that can be read.
    """
    return (hf_config.speculators_config if is_speculators(hf) else hf_config.dspark_config)(hf)


def borrowed(config: DSparkConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter, see `Format.borrowed`."""
    return name_borrowed(config)


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in, other than the speculators schema."""
    kind = "DSpark" if hf.get("markov_rank") else "its own DFlash, whose anchor proposes too"
    return f"native (DeepSpec: {kind})"


def needs_speculators(config: DSparkConfig) -> bool:
    """Say whether the schema alone can describe the drafter.

    Neither layout can describe a causal backbone; its files are read by this library alone.
    """
    return not hf_config.is_deepspec(config) and describes_attention(config)


def dspark_leaves(config: DSparkConfig) -> list[Leaf]:
    """List the leaves of all trained weights: those of the backbone, and of the heads it has."""
    backbone = drafter_leaves(config)
    leaves = [leaf._replace(path=("backbone", *leaf.path)) for leaf in backbone]
    if config.markov_rank:
        leaves += _markov_leaves(config)
    if config.confidence:
        rank = config.markov_rank if config.confidence_with_markov else 0
        width = config.hidden_size + rank
        leaves += linear(
            ("confidence_head", "proj"), ["confidence_head.proj"], width, [1], bias=True
        )
    return leaves


def _markov_leaves(config: DSparkConfig) -> list[Leaf]:
    """List the leaves of the Markov head.

    W1 has a row for every token of the target; W2 has an output for every token that can be
    drafted.
    """
    path, name, rank, width = ("markov",), "markov_head", config.markov_rank, config.hidden_size
    size = config.draft_vocab_size or config.vocab_size
    leaves = [
        Leaf((*path, "w1"), ((f"{name}.markov_w1.weight",),), ((config.vocab_size, rank),)),
        *linear((*path, "w2"), [f"{name}.markov_w2"], rank, [size], bias=False),
    ]
    if config.markov_head == "gated":
        leaves += linear((*path, "gate"), [f"{name}.gate_proj"], width + rank, [rank], bias=True)
    elif config.markov_head == "rnn":
        inputs = width + 2 * rank
        leaves += linear((*path, "joint"), [f"{name}.joint_proj"], inputs, [3 * rank], bias=True)
    return leaves


_NATIVE = tensor_writer(hf_config.dspark_config_to_hf, name_borrowed)
_SCHEMA = tensor_writer(hf_config.speculators_config_to_hf, name_borrowed)
FORMAT = backbone_format(
    matches,
    read_config,
    dspark_leaves,
    _NATIVE,
    _SCHEMA,
    needs_speculators,
    layout=layout,
    borrowed=borrowed,
    writers={"dspark": _NATIVE, "speculators": _SCHEMA},
)
