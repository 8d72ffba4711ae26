"""Tables of weights that several drafters share."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import FeatureDrafterConfig, TransformerConfig
from jaxspec.io.weights.weight_map import Leaf, linear, vector


def list_layer_leaves(
    config: TransformerConfig,
    path: tuple[str, ...],
    inputs: int,
    prefix: str = "",
    outputs: int | None = None,
) -> list[Leaf]:
    """List the leaves of the attention and feed-forward of a drafter's one layer.

    Args:
      path: keys of the layer below "params".
      inputs: width that the attention reads, which may exceed `config.hidden_size`.
      prefix: start of the layer's tensor names.
      outputs: width of the feed-forward's result; None: `config.hidden_size`.
    """
    width, bias = config.hidden_size, config.qkv_bias
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, names, mlp = (*path, "attention"), f"{prefix}self_attn", f"{prefix}mlp"
    leaves = [
        *linear((*attention, "q"), [f"{names}.q_proj"], inputs, [queries], bias),
        *linear(
            (*attention, "kv"), [f"{names}.{x}_proj" for x in "kv"], inputs, [keys, keys], bias
        ),
        *linear((*attention, "o"), [f"{names}.o_proj"], queries, [width], config.o_bias),
        vector((*path, "mlp_norm"), f"{prefix}post_attention_layernorm", width),
        *linear(
            (*path, "mlp", "gate_up"),
            [f"{mlp}.gate_proj", f"{mlp}.up_proj"],
            width,
            [config.ffn_size] * 2,
            False,
        ),
        *linear(
            (*path, "mlp", "down"), [f"{mlp}.down_proj"], config.ffn_size, [outputs or width], False
        ),
    ]
    if config.qk_norm:
        leaves += [
            vector((*attention, f"{x}_norm"), f"{names}.{x}_norm", config.head_dim) for x in "qk"
        ]
    return leaves


def make_head_leaf(config: Any) -> Leaf:
    """Make the leaf of a drafter's own output projection [E, D].

    D is the number of tokens that can be drafted. `config` is a `DrafterConfig` with `hidden_size`.
    """
    shape = (config.draft_vocab_size or config.vocab_size, config.hidden_size)
    return Leaf(("lm_head",), (("lm_head.weight",),), (shape,), transpose=True)


def count_features(config: FeatureDrafterConfig) -> int:
    """Count the components of the target features that a drafter reads.

    A published file that states no feature layers has three of them.
    """
    return (len(config.feature_layers) or 3) * config.target_hidden_size
