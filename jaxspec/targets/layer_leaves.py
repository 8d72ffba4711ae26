"""Tables of the weights of decoder layers, by Llama's names of tensors."""

from __future__ import annotations

from jaxspec.core.config import LayerConfig
from jaxspec.io.weights.weight_map import Leaf, linear, vector

# Modules of norms in `DecoderLayer` -> names in files, by `LayerConfig.norms`.
_NORMS = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {
        "attention_post_norm": "post_attention_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
}


def decoder_layer_leaves(config: LayerConfig, index: int, prefix: str) -> list[Leaf]:
    """List the leaves of a drafter's dense layer; its tensors are `{prefix}layers.{index}.*`."""
    norms = list_norms(config, index, prefix)
    attention = list_attention(config, index, prefix, fused=False)
    return norms + attention + list_mlp(config, index, prefix)


def list_norms(config: LayerConfig, index: int, prefix: str = "model.") -> list[Leaf]:
    """List the leaves of the norms of a layer."""
    return [
        vector((f"layers_{index}", path), f"{prefix}layers.{index}.{name}", config.hidden_size)
        for path, name in _NORMS[config.norms].items()
    ]


def list_attention(
    config: LayerConfig, index: int, prefix: str = "model.", *, fused: bool, joined: bool = False
) -> list[Leaf]:
    """List the leaves of a layer's attention.

    Args:
      fused: as in `jaxspec.targets.layers.Attention`.
      joined: whether files hold q, k and v as one `qkv_proj`.
    """
    c, names = config, f"{prefix}layers.{index}.self_attn"
    path = (f"layers_{index}", "attention")
    queries, keys, values = c.count_columns()
    parts, leaves = {"q": queries, "k": keys, "v": values}, []
    modules = ("qkv",) if fused else ("q", "kv")
    for module in modules if c.kv_source is None else ("q",):
        stored = {f"{names}.{x}_proj": parts[x] for x in module if parts[x]}
        if joined:
            stored = {f"{names}.qkv_proj": queries + keys + values}
        leaves += linear(
            (*path, module), list(stored), c.hidden_size, list(stored.values()), c.qkv_bias
        )
    leaves += linear(
        (*path, "o"), [f"{names}.o_proj"], c.num_heads * c.value_dim, [c.hidden_size], c.o_bias
    )
    if c.qk_norm:
        sizes = (queries, keys) if c.qk_norm_whole else (c.head_dim, c.head_dim)
        leaves += [
            vector((*path, f"{x}_norm"), f"{names}.{x}_norm", size)
            for x, size in zip("qk", sizes, strict=True)
            if x == "q" or c.kv_source is None
        ]
    if c.sinks:
        leaves.append(Leaf((*path, "sinks"), ((f"{names}.sinks",),), ((c.num_heads,),)))
    return leaves


def list_delta_net(config: LayerConfig, index: int) -> list[Leaf]:
    """List the leaves of a layer's gated delta net, by the names of Qwen3.5's files."""
    delta, width = config.delta, config.hidden_size
    path, names = (f"layers_{index}", "delta_net"), f"model.layers.{index}.linear_attn"
    heads, values = delta.value_heads, delta.value_heads * delta.value_dim
    inputs = [f"{names}.in_proj_qkv", f"{names}.in_proj_z"]
    gates = f"{names}.in_proj_b.weight", f"{names}.in_proj_a.weight"
    return [
        *linear((*path, "qkvz"), inputs, width, [delta.channels, values], False),
        Leaf((*path, "beta_decay"), (gates,), ((heads, width),) * 2, transpose=True),
        Leaf(
            (*path, "conv"),
            ((f"{names}.conv1d.weight",),),
            ((delta.channels, 1, delta.conv_width),),
        ),
        Leaf((*path, "a_log"), ((f"{names}.A_log",),), ((heads,),), wide=True),
        Leaf((*path, "dt_bias"), ((f"{names}.dt_bias",),), ((heads,),), wide=True),
        vector((*path, "norm"), f"{names}.norm", delta.value_dim),
        *linear((*path, "out"), [f"{names}.out_proj"], values, [width], False),
    ]


def list_mlp(
    config: LayerConfig, index: int, prefix: str = "model.", *, joined: bool = False
) -> list[Leaf]:
    """List the leaves of a layer's dense feed-forward; `joined`: files hold one `gate_up_proj`."""
    names = f"{prefix}layers.{index}.mlp"
    return list_gated(
        (f"layers_{index}", "mlp"), names, config.hidden_size, config.ffn_size, joined
    )


def list_ends(config: LayerConfig, index: int, prefix: str = "model.") -> list[Leaf]:
    """List the leaves of what comes behind a layer's feed-forward: the tokens' inputs for the
    layer, and the factor of its result.
    """
    c, path, name = config, f"layers_{index}", f"{prefix}layers.{index}"
    leaves = []
    if c.per_layer_size:
        inner, outer = c.per_layer_size, c.hidden_size
        gate, projection = f"{name}.per_layer_input_gate", f"{name}.per_layer_projection"
        leaves += linear((path, "per_layer_gate"), [gate], outer, [inner], False)
        leaves += linear((path, "per_layer_projection"), [projection], inner, [outer], False)
        leaves.append(vector((path, "per_layer_norm"), f"{name}.post_per_layer_input_norm", outer))
    if c.output_scale:
        leaves.append(Leaf((path, "output_scale"), ((f"{name}.layer_scalar",),), ((1,),)))
    return leaves


def list_gated(
    path: tuple[str, ...], names: str, width: int, ffn: int, joined: bool = False
) -> list[Leaf]:
    """List the leaves of a gated feed-forward whose tensors are `{names}.*`."""
    stored, sizes = [f"{names}.gate_proj", f"{names}.up_proj"], [ffn, ffn]
    if joined:
        stored, sizes = [f"{names}.gate_up_proj"], [2 * ffn]
    return [
        *linear((*path, "gate_up"), stored, width, sizes, False),
        *linear((*path, "down"), [f"{names}.down_proj"], ffn, [width], False),
    ]


def list_experts(config: LayerConfig, index: int) -> list[Leaf]:
    """List the leaves of a layer's experts, one tensor for each expert and projection."""
    moe, width = config.moe, config.hidden_size
    path, names = (f"layers_{index}", "mlp"), f"model.layers.{index}.mlp"
    experts, ffn = [f"{names}.experts.{e}" for e in range(moe.num_experts)], moe.expert_ffn_size
    gate_up = tuple(
        (f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight") for expert in experts
    )
    down = tuple((f"{expert}.down_proj.weight",) for expert in experts)
    return [
        Leaf(
            (*path, "router"),
            ((f"{names}.gate.weight",),),
            ((moe.num_experts, width),),
            transpose=True,
        ),
        Leaf(
            (*path, "gate_up"), gate_up, ((ffn, width), (ffn, width)), transpose=True, stacked=True
        ),
        Leaf((*path, "down"), down, ((width, ffn),), transpose=True, stacked=True),
    ]
