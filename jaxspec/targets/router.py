"""Which experts a token uses, and how much each weighs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.config import MoEConfig


def score_experts(rows: jax.Array, router: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Multiply rows [R, E] by the router [E, X] and add its bias [X], float32 [R, X].

    The product has full precision: a GPU multiplies in TF32 by default, and a near-tie would then
    choose another expert.
    """
    scores = jnp.matmul(
        rows.astype(jnp.float32),
        router.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    return scores if bias is None else scores + bias.astype(jnp.float32)


def choose_experts(
    scores: jax.Array, moe: MoEConfig, correction: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Choose k experts of each row.

    Args:
      scores: float32 [R, X].
      moe: the mixture.
      correction: float32 [X], which `sigmoid` scores get for the choice alone.

    Returns:
      Weights float32 [R, k] and experts int32 [R, k].
    """
    if moe.score == "chosen":
        best, expert = jax.lax.top_k(scores, moe.experts_per_token)
        return jax.nn.softmax(best, axis=-1) * moe.weight_scale, expert
    if moe.score == "softmax":
        scores = choice = jax.nn.softmax(scores, axis=-1)
        least = 0.0
    else:
        scores = jax.nn.sigmoid(scores)
        choice, least = scores + correction.astype(jnp.float32), 1e-20
    if moe.groups > 1:
        choice = _keep_groups(choice, moe)
    _, expert = jax.lax.top_k(choice, moe.experts_per_token)
    weight = jnp.take_along_axis(scores, expert, axis=-1)
    if moe.normalize_weights:
        weight = weight / (weight.sum(-1, keepdims=True) + least)
    return weight * moe.weight_scale if moe.weight_scale != 1 else weight, expert


def _keep_groups(choice: jax.Array, moe: MoEConfig) -> jax.Array:
    """Set scores [R, X] to -inf outside of the groups whose two best scores sum highest."""
    grouped = choice.reshape(*choice.shape[:-1], moe.groups, -1)
    best = jax.lax.top_k(grouped, 2)[0].sum(-1)
    _, kept = jax.lax.top_k(best, moe.kept_groups)
    allowed = (kept[..., None] == jnp.arange(moe.groups)).any(-2)
    return jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(choice.shape)
