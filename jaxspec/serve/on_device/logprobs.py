"""Log-probabilities of tokens, for the requests that ask for them.

A visit keeps the hidden state that each token was drawn from. The slots that ask are projected once
more after it, so that the rounds themselves cost the same for everybody. The tokens of a prompt are
ranked while it is fed, chunk by chunk.

B slots, M tokens of a visit, E hidden size, N most alternatives. A ranked token is int32 [2 + 2N]:
the bits of its log-probability, its rank, the bits of its alternatives' log-probabilities, their
ids.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.sampling.top_k import top_k
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.round.quick_jit import quick_jit
from jaxspec.serve.on_device.slots import SlotsState
from jaxspec.serve.requests import TokenLogprob

MOST = 20
"""Most alternatives of a token, OpenAI's limit."""

# Rows that are projected together: few of a visit, since most emit few tokens for a slot. The
# logits of so many rows of a prompt are 40 MB for the largest vocabularies.
_ROWS, _PROMPT_ROWS = 8, 64


@quick_jit(static_argnames=("config", "count"))
def rank_tokens(
    params: Params, state: SlotsState, slot: jax.Array, *, config: DecodeConfig, count: int
) -> jax.Array:
    """Rank the tokens of the last visit of a slot among their alternatives.

    The distribution is the target's own: at temperature 1, before top-k, top-p and min-p.

    Args:
      state: with the hidden states of the visit.
      slot: int32 [].
      count: N.

    Returns:
      int32 [M, 2 + 2N] for `read_logprobs`; rows beyond the emitted tokens are garbage.
    """
    assert state.hidden is not None, "the engine was made for log-probabilities"
    target = make_plan(params.spec, config).target
    hidden, tokens = state.hidden[slot], state.decode.tokens[slot]

    def rank(i: jax.Array, ranked: jax.Array) -> jax.Array:
        # The last rows overlap those before them where M is no multiple.
        start = jnp.minimum(i * _ROWS, tokens.shape[0] - _ROWS)
        rows, token = (jax.lax.dynamic_slice_in_dim(x, start, _ROWS) for x in (hidden, tokens))
        new = _rank(target.apply(params.target, rows, method="logits"), token, count)
        return jax.lax.dynamic_update_slice_in_dim(ranked, new, start, 0)

    rounds = (state.decode.emitted[slot] + _ROWS - 1) // _ROWS
    empty = make_ranked(tokens.shape[0], count)
    return constrain(jax.lax.fori_loop(0, rounds, rank, empty), PartitionSpec())


def make_ranked(tokens: int, count: int) -> jax.Array:
    """Make int32 [tokens, 2 + 2N] to be filled."""
    return jnp.zeros((tokens, 2 + 2 * count), jnp.int32)


def rank_chunk(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    following: jax.Array,
    ranked: jax.Array,
    at: jax.Array,
) -> jax.Array:
    """Rank the tokens that follow those of a chunk of a prompt among their alternatives.

    Args:
      unembed: from hidden states [R, E] to logits [R, V].
      hidden: [T, E], the target's hidden states of the chunk; T is at most 64 or a multiple of it.
      following: int32 [S], the token after each one of the prompt.
      ranked: int32 [S, 2 + 2N].
      at: int32 [], the chunk's first token, a multiple of T.

    Returns:
      `ranked`, with new rows from `at` to `at + T`.
    """
    size = min(hidden.shape[0], _PROMPT_ROWS)
    blocks, count = hidden.shape[0] // size, ranked.shape[1] // 2 - 1

    def rank(i: jax.Array, ranked: jax.Array) -> jax.Array:
        rows = jax.lax.dynamic_slice_in_dim(hidden, i * size, size)
        token = jax.lax.dynamic_slice_in_dim(following, at + i * size, size)
        new = _rank(unembed(rows), token, count)
        return jax.lax.dynamic_update_slice_in_dim(ranked, new, at + i * size, 0)

    return jax.lax.fori_loop(0, blocks, rank, ranked)


def _rank(logits: jax.Array, token: jax.Array, count: int) -> jax.Array:
    """Rank tokens int32 [R] by logits [R, V]: int32 [R, 2 + 2N]."""
    logprob = jax.nn.log_softmax(logits.astype(jnp.float32))
    own = jnp.take_along_axis(logprob, token[:, None], axis=1)
    rank = 1 + (logprob > own).sum(-1, keepdims=True, dtype=jnp.int32)
    best, index = top_k(logprob, count)
    own, best = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (own, best))
    return jnp.concatenate([own, rank, best, index], axis=1)


def read_logprobs(ranked: jax.Array, tokens: slice, alternatives: int) -> list[TokenLogprob]:
    """Wait for ranked tokens int32 [tokens, 2 + 2N] and read some of them.

    Args:
      alternatives: how many to return for each token, at most N.
    """
    rows = np.asarray(ranked)[tokens]
    own, rank, (best, ids) = rows[:, 0], rows[:, 1], np.split(rows[:, 2:], 2, axis=1)
    values = best[:, :alternatives].copy().view(np.float32).tolist()
    return [
        TokenLogprob(one, tuple(zip(index, value, strict=True)), place)
        for one, index, value, place in zip(
            own.copy().view(np.float32).tolist(),
            ids[:, :alternatives].tolist(),
            values,
            rank.tolist(),
            strict=True,
        )
    ]
