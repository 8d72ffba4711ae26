"""A drafter of random weights and any depth, to see what updates cost at sizes that nobody trained."""

from __future__ import annotations

import jax.numpy as jnp

from jaxspec.call.arguments import check_count
from jaxspec.core.params import Params
from jaxspec.drafters.specblock.network import RANK_LOGPROBS
from training.drafters.model_options import ModelOptions
from training.drafters.specblock.model import init_specblock, make_specblock_config

NAME = "specblock"


def add_random_drafter(params: Params, layers: int) -> Params:
    """Add a SpecBlock drafter with the widths of the target and a quarter of its vocabulary.

    Raises:
      ValueError: `layers` is below 1.
    """
    check_count("layers", layers)
    target = params.spec.target
    size, last = max(target.vocab_size // 4, RANK_LOGPROBS), target.num_layers - 1
    sizes = {"num_layers": layers, "draft_vocab": size, "feature_layers": (0, last // 2, last)}
    options = ModelOptions(kind=NAME, slots=4, blocks=2, **sizes)
    config = make_specblock_config(options, target, None)
    variables = init_specblock(config, 0) | {"draft": {"ids": jnp.arange(size, dtype=jnp.int32)}}
    return params.with_drafter(NAME, config, variables)
