"""The gated delta rule over the rows of a tree, which follow a state, in one pass (XLA).

Row t decays the state of its parent, S <- e^(g_t) S, writes u_t = beta_t (v_t - S^T k_t) under its
key, S <- S + k_t u_t^T, and reads S^T q_t (Yang et al. 2024). The u of all rows of a tree solve one
unit triangular system per head, so that no row needs a state of its own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_HIGHEST = jax.lax.Precision.HIGHEST  # a GPU would multiply float32 in TF32


def delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array,
    decay: jax.Array,
    s: jax.Array,
    seen: jax.Array | None = None,
    depth: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute what T rows read from the states of their own paths, and what they write to them.

    Args:
      q, k: float32 [B, T, Hk, dk], normalised. Value head h uses those of head h // (Hv // Hk).
      v: float32 [B, T, Hv, dv].
      beta: float32 [B, T, Hv], the share of u that is written.
      decay: float32 [B, T, Hv], g, at most 0.
      s: float32 [B, Hv, dk, dv], the state before the rows; it is not changed.
      seen: bool [B, T, T], whether row s is row t or an ancestor of it; parents come before their
        children. None: the rows follow one another.
      depth: int32 [B, T], ancestors of each row; None without `seen`.

    Returns:
      (what the rows read, u), float32 [B, T, Hv, dv].
    """
    batch, rows, heads, _ = k.shape
    visible = jnp.tri(rows, dtype=bool)[None] if seen is None else seen
    values = v.reshape(batch, rows, heads, -1, v.shape[-1]).transpose(0, 2, 3, 1, 4)
    beta, decay = (
        x.reshape(batch, rows, heads, -1).transpose(0, 2, 3, 1)[..., None] for x in (beta, decay)
    )
    s = s.reshape(batch, heads, -1, *s.shape[2:])
    # From here on [B, Hk, r, T, ...], with the r value heads of a key head.
    path = jnp.broadcast_to(visible, (batch, rows, rows)).astype(jnp.float32)
    total = jnp.einsum("bts,bkrsx->bkrtx", path, decay, precision=_HIGHEST)
    # Between two branches, the exponent may be positive and overflow.
    passed = jnp.where(visible[:, None, None], total - total.swapaxes(-1, -2), -jnp.inf)
    kept = jnp.exp(passed)  # what row t still has of what row s wrote

    both = jnp.concatenate([k, q], axis=1)
    known = jnp.einsum("btkd,bkrdv->bkrtv", both, s, precision=_HIGHEST)
    alike = jnp.einsum("btkd,bskd->bkts", both, k, precision=_HIGHEST)[:, :, None]
    reach = jnp.exp(total)
    strict = ~jnp.eye(rows, dtype=bool)
    low = jnp.where(strict, beta * kept * alike[..., :rows, :], 0.0)
    u = beta * (values - reach * known[..., :rows, :])
    if rows > 1:
        u = solve_chain(low, u) if seen is None else solve_tree(low, u, depth)
    read = reach * known[..., rows:, :]
    read = read + jnp.matmul(kept * alike[..., rows:, :], u, precision=_HIGHEST)
    read, u = (x.transpose(0, 3, 1, 2, 4).reshape(v.shape) for x in (read, u))
    return read, u


def solve_chain(low: jax.Array, right: jax.Array) -> jax.Array:
    """Solve (I + low) u = right by substitution.

    Args:
      low: [..., T, T], strictly lower triangular.
      right: [..., T, dv].
    """
    return jax.lax.linalg.triangular_solve(
        low, right, left_side=True, lower=True, unit_diagonal=True
    )


def solve_by_depth(low: jax.Array, right: jax.Array, depth: jax.Array) -> jax.Array:
    """Solve the same for trees [B, ...]: the rows of one depth at a time, in one product.

    It is as exact as substitution. A product of (I - low) (I + low^2) (I + low^4) ... takes fewer
    steps and is not: where keys are alike, powers of `low` grow as binomials do.

    Args:
      depth: int32 [B, T].
    """
    depth = depth[:, None, None, :, None]

    def solve(level: jax.Array, u: jax.Array) -> jax.Array:
        found = right - jnp.matmul(low, u, precision=_HIGHEST)
        # Rows that are deeper wait: garbage in them may overflow, and 0 times infinity is no 0.
        return jnp.where(depth == level, found, u)

    first = jnp.where(depth == 0, right, 0.0)
    return jax.lax.fori_loop(1, depth.max() + 1, solve, first)


def solve_tree(low: jax.Array, right: jax.Array, depth: jax.Array) -> jax.Array:
    """Solve by depth; on a CPU by substitution, whose cost does not grow with the depth."""
    return jax.lax.platform_dependent(
        low,
        right,
        depth,
        cpu=lambda low, right, depth: solve_chain(low, right),
        default=solve_by_depth,
    )
