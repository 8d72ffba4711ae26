"""Packed verification: the rows of all slots' trees side by side, as many as the plan gave each.

Everything but attention sees R rows [1, R] and knows of no slots; for attention see
`pallas_kernels.attention.packed_attention`.

B slots, N rows of a tree, R packed rows, A = longest path + bonus.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.acceptance import accept_match
from jaxspec.core.cache import PackedCache, Packing
from jaxspec.core.sampling.penalties import forbid, list_paths, penalise
from jaxspec.core.sampling.sampling import argmax, draw_rows
from jaxspec.core.sampling.settings import MIN_TEMPERATURE, Penalties
from jaxspec.core.state import DecodeState, Tree
from jaxspec.round.adjust_logits import asks_now, change_if, list_ends
from jaxspec.round.context import Round, Verified
from jaxspec.round.sizes import run_smallest
from jaxspec.serve.bias import LogitBias, add_bias


def pack(count: jax.Array, rows: int, width: int) -> Packing:
    """Pack the first `count` int32 [B] rows of each slot into `rows` R, their sum or more.

    Args:
      width: N.
    """
    ends = jnp.cumsum(count)
    begins, index = ends - count, jnp.arange(rows, dtype=jnp.int32)
    slot = (index[:, None] >= ends).sum(-1, dtype=jnp.int32)
    padding = slot >= count.shape[0]
    slot = jnp.minimum(slot, count.shape[0] - 1)
    row = jnp.where(padding, 0, index - begins[slot])
    own = jnp.arange(width) < count[:, None]
    # Masked rows are multiplied by a weight of zero, which keeps a NaN. So none of another slot.
    place = begins[:, None] + jnp.where(own, jnp.arange(width), 0)
    return Packing(slot, row, jnp.minimum(place, rows - 1), count)


def verify_packed(
    round: Round,
    state: DecodeState,
    tree: Tree,
    noise: jax.Array,
    bias: LogitBias,
    edge: jax.Array,
    edges: tuple[int, ...],
    with_hidden: bool = False,
) -> tuple[Verified, jax.Array]:
    """Verify the first `tree.size` rows of each slot, 0 for slots that do not decode.

    Args:
      tree: of N rows; rows beyond `size` are padding.
      noise: float32 [B, A, V], noise of the tokens after the root.
      bias: what each slot adds to the logits that it draws from.
      edge: int32 [], index of the compiled number of rows to run.
      edges: compiled numbers of rows, rising.
      with_hidden: return the hidden states of the paths too.

    Returns:
      (what verification computes; bool [B], slots with a row that is not finite).
    """

    def at(rows: int) -> Callable[[], tuple[Verified, jax.Array]]:
        return lambda: _verify_rows(round, state, tree, noise, bias, rows, with_hidden)

    index = tuple(range(len(edges)))
    return run_smallest(edge, index, [at(rows) for rows in edges])


def _verify_rows(
    round: Round,
    state: DecodeState,
    tree: Tree,
    noise: jax.Array,
    bias: LogitBias,
    rows: int,
    with_hidden: bool,
) -> tuple[Verified, jax.Array]:
    longest, width = noise.shape[1], min(tree.token.shape[1], rows)
    packing = pack(tree.size, rows, tree.token.shape[1])
    slot, row = packing.slot, packing.row
    token, depth = tree.token[slot, row], tree.depth[slot, row]
    seen = packing._replace(place=packing.place[:, :width])
    cache = PackedCache(state.cache, seen)
    words = tree.ancestors[:, :width, : -(-width // 32)]
    out = round.target(
        token[None],
        (state.cache.length[slot] + depth)[None],
        cache,
        words,
        feature_layers=round.feature_layers,
    )
    logits = round.target(out.hidden, method="logits")[0]

    def adjust(logits: jax.Array) -> jax.Array:
        counts, stop_from = state.counts, round.request.stop_from
        assert counts is not None and stop_from is not None, "slots have both"
        penalties = Penalties(*(x[slot] for x in round.request.sampling.penalties))
        paths = list_paths(tree, longest - 1)[slot, row]
        logits = penalise(logits, counts[slot], paths, penalties)
        early = state.emitted[slot] + depth < stop_from[slot]
        return forbid(logits, list_ends(round)[slot, 0], early)

    own = _draw(round, logits, noise, slot, depth, bias, asks_now(round, state), adjust)
    accepted = accept_match(tree, own[packing.place], longest - 1)
    at = jnp.take_along_axis(packing.place, accepted.path, axis=1)
    hidden = out.hidden[0][at] if with_hidden else None
    k, v = jax.tree.map(lambda rows: rows[:, 0][:, at], (out.k, out.v))
    features = out.features[0][at]
    # Slots without rows commit nothing, yet their caches are written behind their sequences: with
    # zeros, not with another slot's rows, which may not be finite.
    decodes = tree.size > 0
    k, v = jax.tree.map(lambda x: jnp.where(decodes[:, None, None, None], x, 0), (k, v))
    features = jnp.where(decodes[:, None, None], features, 0)
    wrong = ~jnp.isfinite(out.hidden[0]).all(-1)[packing.place].all(-1)
    return Verified(accepted, k, v, features, hidden), wrong & decodes


def _draw(
    round: Round,
    logits: jax.Array,
    noise: jax.Array,
    slot: jax.Array,
    depth: jax.Array,
    bias: LogitBias,
    adjusts: jax.Array,
    adjust: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Draw after rows with logits [R, V], of the slots int32 [R]; return int32 [R].

    If all slots are greedy and nothing changes their logits, these are read once, as they are. All
    others share one program: sampling is most of what there is to compile.

    Args:
      adjusts: bool [], whether earlier tokens change logits of some slot.
      adjust: changes them, after the biases.
    """
    sampling, values = round.config.sampling, round.request.sampling

    def sample() -> jax.Array:
        changed = change_if(adjusts, adjust, add_bias(logits, slot, bias))
        return draw_rows(changed, noise, slot, depth, sampling, values)

    asked = (values.temperature[slot] >= MIN_TEMPERATURE).any() | (bias.token >= 0).any()
    return jax.lax.cond(asked | adjusts, sample, lambda: argmax(logits.astype(jnp.float32)))
