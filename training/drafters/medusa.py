"""Train Medusa heads: each predicts the token at a fixed distance; the target is frozen.

Cai et al. 2024 (Medusa-1): head i reads a token's hidden state and is trained by cross-entropy on
the token i + 2 places later. The heads' weights fall by a constant factor like 0.8 from head to
head (`gamma` = -1 / ln 0.8 = 4.48; the released script has no decay). With `kind` fkl the heads
learn the target's distribution (self-distillation) instead of the text.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.medusa.network import Medusa, MedusaConfig

from ..loss.objective import LossOptions, cast_leaves, get_target_states
from ..loss.slot_losses import check_options, compute_weights, make_slot_losses, sum_losses
from ..loss.terms import gather
from .model_options import ModelOptions, check_sizes
from .presets import LLAMA31_8B, DrafterPreset, make_mini_head_preset
from .record import TrainingRecord


def make_medusa_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> MedusaConfig:
    """Make the config of the heads for `target`.

    Raises:
      ValueError: a size is out of range, or a reduced draft vocabulary was asked for.
    """
    check_sizes(options, target)
    if options.draft_vocab is not None:
        raise ValueError("medusa heads draft the whole vocabulary: leave draft_vocab out")
    return MedusaConfig(
        target.hidden_size,
        options.slots or 4,
        options.num_layers,
        options.own_projection,
        feature_layers=(target.num_layers,),
        vocab_size=target.vocab_size,
        score_temperature=options.score_temperature,
    )


def make_medusa_loss(
    config: MedusaConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. Head i at anchor p reads the hidden
    state of token p - 1 and learns token p + 1 + i. Anchors at the beginning of a document do not
    count. `loss` is the mean over all counted slots, not the sum of the heads' means; these differ
    by a constant factor, except at the ends of documents.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(options)
    model, slot_losses = Medusa(config), make_slot_losses(target_config, options)

    def loss(params, target, batch):
        states = get_target_states(config, target_config, target, batch)
        weights = {"params": cast_leaves(params["params"], options.dtype)}
        last = gather(states.hidden, jnp.maximum(batch["anchors"] - 1, 0)).astype(options.dtype)
        hidden = model.apply(weights, last)
        if config.own_projection:
            heads = params["params"]["lm_head"]
        else:
            tied = target_config.tie_embeddings
            heads = target["params"]["embedding"].T if tied else target["params"]["lm_head"]
        found = slot_losses(hidden, heads, target, batch, states)
        return sum_losses(found, compute_weights(batch, config.heads, 1, options.gamma))

    return loss


def init_medusa(config: MedusaConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables {"params": ...} of `Medusa(config)`.

    Args:
      config: of the drafter.
      seed: of the random weights.
      head: [E, V], initial projection of every head: the target's, as in the released script; None
        draws the projections at random.
    """

    def touch(model: Medusa, hidden):
        return model.logits(model(hidden)) if config.own_projection else model(hidden)

    start = jax.jit(
        lambda key: Medusa(config).init(key, jnp.zeros((1, config.hidden_size)), method=touch)
    )
    params = start(jax.random.key(seed))["params"]
    if head is not None and config.own_projection:
        params = params | {
            "lm_head": jnp.broadcast_to(jnp.asarray(head, jnp.float32), params["lm_head"].shape)
        }
    return {"params": params}


def _published(target: str) -> DrafterPreset:
    """Make the recipe of the released script (Medusa-1): three heads of one layer, two epochs of
    128 rows of 2,048 tokens at 1e-3 with 10 % warm-up and a cosine, from every position.
    """
    return DrafterPreset(
        target=target,
        model=dict(kind="medusa", slots=3, num_layers=1),
        loss=dict(kind="ce", dtype="bfloat16", tile=1024),
        optimizer=dict(name="adamw", rate=1e-3, warmup=0.1, betas=(0.9, 0.999), weight_decay=0.0),
        loop=dict(save_every=500, eval_every=1_000, parts=32),
        length=2048,
        batch=128,
        anchors=2048,
        epochs=2.0,
    )


MEDUSA = TrainingRecord(
    name="medusa",
    what="Medusa heads",
    config=make_medusa_config,
    init=lambda config, seed, head: init_medusa(
        config, seed, head if config.own_projection else None
    ),
    loss=lambda config, target, loss, own: make_medusa_loss(config, target, loss),
    presets={
        "medusa": make_mini_head_preset(
            "medusa", dict(slots=5, num_layers=4, own_projection=False)
        ),
        "medusa-llama-3.1-8b": _published(LLAMA31_8B),
    },
)
