"""Read and write Falcon drafters in this library's own layout (see `own_layout`)."""

from __future__ import annotations

from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.drafters.own_layout import list_end_leaves, make_own_format
from jaxspec.io.weights.weight_map import Leaf, linear, vector

SIZES = ("slots", "blocks", "lstm_size", "lstm_layers")


def list_leaves(config: FalconConfig) -> list[Leaf]:
    """List the leaves of all trained weights; the LSTM's gates are in PyTorch's order."""
    width, size = config.hidden_size, config.lstm_size
    table = [
        *list_end_leaves(config),
        vector(("layer", "attention_norm"), "input_layernorm", width),
        *list_layer_leaves(config, ("layer",), width),
        *linear(("mix",), ["mix"], size, [width], False),
    ]
    for i in range(config.lstm_layers):
        path, inputs = ("lstm", f"layer_{i}"), size if i else 2 * width
        table += [
            Leaf(
                (*path, "kernel"),
                ((f"lstm.weight_ih_l{i}",),),
                ((4 * size, inputs),),
                transpose=True,
            ),
            Leaf(
                (*path, "recurrent"),
                ((f"lstm.weight_hh_l{i}",),),
                ((4 * size, size),),
                transpose=True,
            ),
            Leaf((*path, "bias"), ((f"lstm.bias_l{i}",),), ((4 * size,),)),
        ]
    return table


FORMAT = make_own_format("FalconDrafter", FalconConfig, SIZES, list_leaves)
