"""Weights of a DSpark drafter: DeepSpec's tensors, to and from the variables of `DSpark`."""

from __future__ import annotations

from jaxspec.drafters.dflash.weights import drafter_leaves
from jaxspec.drafters.dspark.config import DSparkConfig
from jaxspec.io.weights.weight_map import Leaf, linear


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
