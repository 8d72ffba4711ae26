"""Training of Medusa heads: each learns the text, or the target's distribution, so many tokens
ahead; the target is frozen.

Cai et al. 2024 (Medusa-1): cross-entropy of head i with the token i + 2 places after the one whose
hidden state it reads, with weights that fall by a constant like 0.8 from head to head (`gamma` = -1
/ ln 0.8 = 4.48; the released script has none), and self-distillation where the target's own
distribution is learnt (`kind` fkl).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.medusa.config import MedusaConfig
from jaxspec.drafters.medusa.network import Medusa
from training.drafter_loss import LossOptions, get_target_states
from training.losses import gather
from training.slot_losses import check_options, compute_weights, make_slot_losses, sum_losses


def make_medusa_loss(
    config: MedusaConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """`loss(params, target, batch) -> {name: (numerator, denominator)}`, as
    `training.drafter_loss.make_loss` does.

    Head i at anchor p reads the hidden state of token p - 1 and learns token p + 1 + i; anchors at
    the beginning of a document do not count. `loss` is the mean over all slots that count, not the
    sum over heads of their means: a constant factor, apart from the ends of documents.

    Raises:
      ValueError: an option out of range.
    """
    check_options(options)
    model, slot_losses = Medusa(config), make_slot_losses(target_config, options)

    def loss(params, target, batch):
        states = get_target_states(config, target_config, target, batch)
        weights = {
            "params": jax.tree.map(lambda leaf: leaf.astype(options.dtype), params["params"])
        }
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
    """Float32 variables {"params": ...} of `Medusa(config)`.

    Args:
      seed: of the random weights.
      head: [E, V], the target's projection, where those of the heads start, as the released script
        does; None: random.
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
