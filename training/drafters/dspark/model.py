"""The DSpark drafter to train: its config for a target, its first weights, and its backbone.

The backbone may be that of a DFlash or JetSpec drafter, to which heads are added.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.dspark.network import DSpark, DSparkConfig

from ...run.optimizer import zero_residual
from ..dflash.model import init_block_drafter, make_block_config
from ..model_options import ModelOptions

# The submodule that is DFlash's network.
BACKBONE = "backbone"


def make_dspark_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> DSparkConfig:
    """Make the config of a DSpark drafter; arguments and errors as in `make_block_config`."""
    backbone = make_block_config(options, target, tokenizer, causal=bool(options.causal))
    rank = 256 if options.markov_rank is None else options.markov_rank
    return DSparkConfig(
        **_fields(backbone),
        markov_rank=rank,
        markov_head=options.markov_head or "vanilla",
        confidence=options.confidence,
        confidence_with_markov=options.confidence and options.confidence_with_markov and rank > 0,
        sample_from_anchor=options.sample_from_anchor,
    )


def init_dspark(config: DSparkConfig, seed: int):
    """Initialise float32 variables of `DSpark(config)`.

    The backbone's are those of `init_block_drafter` with the same seed. Weights of the heads are
    normal (0.02), biases 0, as in DeepSpec.
    """

    def touch(drafter: DSpark, previous, hidden):
        if config.markov_rank:
            drafter.block_bias(previous, hidden)
        if config.confidence:
            drafter.confidence(previous, hidden)

    previous, hidden = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, config.hidden_size))
    init = jax.jit(lambda key: DSpark(config).init(key, previous, hidden, method=touch))
    heads = init(jax.random.fold_in(jax.random.key(seed), 1)).get("params", {})
    return {"params": {BACKBONE: init_block_drafter(config, seed)["params"], **heads}}


def silence_heads(variables):
    """Zero the projections to the residual stream, see `zero_residual`, and the Markov head's W1.

    The head starts without a say; W1 stays zero for tokens that never occur.
    """
    variables = zero_residual(variables)
    params = variables["params"]
    if "markov" not in params:
        return variables
    markov = params["markov"] | {"w1": jnp.zeros_like(params["markov"]["w1"])}
    return variables | {"params": params | {"markov": markov}}


def find_backbone(config: DSparkConfig, found) -> BlockDrafterConfig:
    """Return what `found` must be to begin the training of `config`: itself, or its backbone.

    Args:
      config: of the drafter to train.
      found: config of the drafter to start from: a DSpark drafter, one without heads (DeepSpec's
        DFlash), or a DFlash or JetSpec drafter.

    Raises:
      ValueError: the slots of `found` predict other tokens than those of `config`.
    """
    if isinstance(found, DSparkConfig):
        if found.markov_rank or found.confidence:
            return config
        bare = dict(markov_rank=0, confidence=False, confidence_with_markov=False)
        return dataclasses.replace(config, markov_head=found.markov_head, **bare)
    if config.sample_from_anchor:
        raise ValueError(
            "the first slot of a DFlash or JetSpec drafter predicts nothing: "
            "give --model.no-sample-from-anchor to keep its slots"
        )
    return BlockDrafterConfig(**_fields(config))


def _fields(config: BlockDrafterConfig) -> dict:
    return {
        field.name: getattr(config, field.name) for field in dataclasses.fields(BlockDrafterConfig)
    }
