"""Falcon: each forward drafts several tokens, and further forwards continue the path."""

from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.drafters.own_layout import list_end_leaves, make_own_format
from jaxspec.drafters.record import DrafterRecord
from jaxspec.io.weights.weight_map import Leaf, linear, vector


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


# `best_first`, `expand` and `beam` need all depths before they choose, so they use only the first
# block.
FALCON = DrafterRecord(
    name="falcon",
    config=FalconConfig,
    make=make_falcon_drafter,
    compared=("chain", "static"),
    further=("best_first", "expand", "beam"),
    files=make_own_format(
        "FalconDrafter", FalconConfig, ("slots", "blocks", "lstm_size", "lstm_layers"), list_leaves
    ),
    page="falcon/README.md",
)
