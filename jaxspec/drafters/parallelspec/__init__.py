"""ParallelSpec: an EAGLE-like layer that fills mask tokens in one forward."""

from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.drafters.own_layout import list_end_leaves, make_own_format
from jaxspec.drafters.parallelspec.drafter import make_parallelspec_drafter
from jaxspec.drafters.parallelspec.network import ParallelSpecConfig
from jaxspec.drafters.record import DrafterRecord
from jaxspec.io.weights.weight_map import Leaf


def list_leaves(config: ParallelSpecConfig) -> list[Leaf]:
    """List the leaves of all trained weights."""
    masks = ((config.slots - 1, config.hidden_size),)
    return [
        *list_end_leaves(config),
        *list_layer_leaves(config, (), 2 * config.hidden_size),
        Leaf(("mask_token",), (("mask_token",),), masks),
        Leaf(("mask_feature",), (("mask_feature",),), masks),
    ]


PARALLELSPEC = DrafterRecord(
    name="parallelspec",
    config=ParallelSpecConfig,
    make=make_parallelspec_drafter,
    compared=("chain", "best_first"),
    further=("expand", "beam", "static", "dynamic"),
    default_builder="best_first",
    files=make_own_format("ParallelSpecDrafter", ParallelSpecConfig, ("slots",), list_leaves),
    page="parallelspec/README.md",
)
