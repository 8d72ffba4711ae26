"""EAGLE-3's training-time test: the drafter learns from its own outputs as features (Li et al.
2025).

At an anchor the drafter runs its chain of `steps` forwards over the text's own tokens, each fed
with the output of the one before, as in decoding: a step sees the pairs of the document before the
anchor's and the steps of its own chain up to itself. Keys and values of the context come straight
from the inputs of the single layer, so what an anchor needs is exact without the other positions'
chains.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3.config import EagleConfig
from jaxspec.drafters.eagle3.network import EagleDrafter
from jaxspec.targets.layers import behind
from training.drafter_loss import LossOptions, get_target_states
from training.losses import gather
from training.slot_losses import (
    check_options,
    compute_weights,
    make_slot_losses,
    map_anchors,
    sum_losses,
)


def make_eagle_loss(
    config: EagleConfig,
    target_config: TargetConfig,
    options: LossOptions,
    *,
    steps: int = 7,
    decay: float = 0.8,
) -> Callable:
    """`loss(params, target, batch) -> {name: (numerator, denominator)}`, as
    `training.drafter_loss.make_loss` does.

    Args:
      config: of the drafter.
      target_config: of the target, whose variables are the loss's second argument, with the
        collection `draft` and the ids in it where the draft vocabulary is reduced.
      options: see `LossOptions`. `fkl` has the gradient of EAGLE-3's cross-entropy with the
        target's distribution, from which it differs by the latter's entropy.
      steps: forwards of a chain, 1 to 32. decay: weight of a step by that of the one before.

    Returns:
      The loss, of `batch` as `make_loss` takes it. An anchor p, where p - 1 is in its document,
      stands for the pair (h_{p-1}, x_p): step k = 1, 2, … predicts the token at p + k, and counts
      where that one is to be learnt, is of the same document, and the target's most probable token
      can be drafted. (The authors take the loss mask of the feature's token, two before the
      predicted one.) Names as of `make_loss`, `loss` in nats a slot, weighted with decay ** (k -
      1).

    Raises:
      ValueError: a size out of range, or options that EAGLE-3 has no use for.
    """
    check_options(options)
    if options.gamma is not None:
        raise ValueError(
            "gamma is the decay of block drafters: give EAGLE-3 `decay`, and leave gamma at None"
        )
    if not 1 <= steps <= 32:
        raise ValueError(f"steps is {steps}: give 1 to 32 steps of training-time test")
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}: give a number above 0, 1 at most")
    losses_of = make_chain_losses(config, target_config, options, steps)
    return lambda params, target, batch: totals(losses_of(params, target, batch), batch, decay)


def make_chain_losses(
    config: EagleConfig, target_config: TargetConfig, options: LossOptions, steps: int
) -> Callable:
    """(params, target, batch) -> (values, right, drafted) [B, A, steps] of every slot, counted or
    not.

    See `training.slot_losses.make_slot_losses`; differentiable with respect to `params`.
    """
    slot_losses = make_slot_losses(target_config, options)

    def losses_of(params, target, batch):
        dtype = jnp.dtype(options.dtype)
        states = get_target_states(config, target_config, target, batch)
        weights = {"params": jax.tree.map(lambda leaf: leaf.astype(dtype), params["params"])}
        embedding = target["params"]["embedding"].astype(dtype)
        hidden = chain_hidden(
            config,
            weights,
            embedding,
            batch,
            states.features.astype(dtype),
            steps,
            options.anchor_chunk,
        )
        hidden = EagleDrafter(config).apply(weights, hidden, method="final")
        return slot_losses(hidden, params["params"]["lm_head"], target, batch, states)

    return losses_of


def totals(found, batch, decay: float) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The sums that `make_eagle_loss` gives, of what `make_chain_losses` found in a batch."""
    learnt = compute_weights(batch, found[0].shape[-1], 1, None)
    return sum_losses(found, learnt * decay ** jnp.arange(learnt.shape[-1]))


def chain_hidden(
    config: EagleConfig, params, embedding, batch, features, steps: int, chunk: int | None = None
) -> jax.Array:
    """Outputs [B, A, steps, E] before the final norm of the chains at the anchors.

    Args:
      params: variables of `EagleDrafter(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A]; an anchor at position 0 has no pair, and its chain means nothing.
      features: [B, S, len(feature_layers) * Et], of the target.
      steps: at most 32.
      chunk: anchors of each row that are computed together and, for the gradient, computed again;
        None keeps everything.
    """
    drafter, positions = EagleDrafter(config), batch["positions"]
    fused = drafter.apply(params, features, method="fuse")
    # The last column has no token after it; no chain reads that pair.
    after = jnp.take(embedding, jnp.roll(batch["tokens"], -1, axis=1), axis=0)
    k, v = drafter.apply(params, after, fused, positions, method="keys_values")
    context = filled(k[None], v[None], None)
    pairs = jnp.maximum(batch["anchors"] - 1, 0)
    ahead = jnp.minimum(batch["anchors"][..., None] + jnp.arange(steps), positions.shape[1] - 1)
    drafted = gather(batch["tokens"], ahead)

    def chain(pair):
        index, place, feature, tokens = pair
        prefix = (context.k, context.v, 0, place, index - place)

        def step(carry, this):
            feature, keys, values = carry
            number, token = this
            mask = jnp.broadcast_to(
                (jnp.uint32(2) << number.astype(jnp.uint32)) - 1, (len(place), 1, 1)
            )
            earlier, rope = (keys, values, number), (place + number)[:, None]
            embedded = jnp.take(embedding, token, axis=0)[:, None]
            hidden, new = drafter.apply(params, embedded, feature, rope, mask, prefix, earlier)
            return (hidden, *behind(earlier, *new)), hidden[:, 0]

        empty = jnp.zeros((len(place), steps, config.num_kv_heads, config.head_dim), feature.dtype)
        return jax.lax.scan(step, (feature[:, None], empty, empty), (jnp.arange(steps), tokens.T))[
            1
        ].swapaxes(0, 1)

    return map_anchors(
        chain, (pairs, gather(positions, pairs), gather(fused, pairs), drafted), chunk
    )


def init_eagle(config: EagleConfig, seed: int, head: jax.Array | None = None):
    """Float32 variables {"params": ...} of `EagleDrafter(config)`.

    Args:
      seed: of the random weights.
      head: [E, D], where the output projection starts, such as the target's columns of the draft
        vocabulary; None: random.
    """

    def touch(drafter: EagleDrafter, features, tokens, positions):
        return drafter.logits(drafter(tokens, drafter.fuse(features), positions)[0])

    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
    tokens, positions = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    start = jax.jit(
        lambda key: EagleDrafter(config).init(key, features, tokens, positions, method=touch)
    )
    variables = start(jax.random.key(seed))
    return (
        variables
        if head is None
        else {"params": variables["params"] | {"lm_head": jnp.asarray(head, jnp.float32)}}
    )
