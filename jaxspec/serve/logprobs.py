"""Log-probabilities of the tokens of a visit, for the requests that ask for them.

A visit keeps the hidden state that each token was drawn from. The slots that ask are projected once
more after it, so that the rounds themselves cost the same for everybody.

B slots, M tokens of a visit, E hidden size, N most alternatives.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.top_k import top_k
from jaxspec.engine.plan import DecodeConfig, make_plan
from jaxspec.engine.quick_jit import quick_jit
from jaxspec.serve.requests import TokenLogprob
from jaxspec.serve.slots import SlotsState

MOST = 20
"""Most alternatives of a token, OpenAI's limit."""

# Rows that are projected together: few, since most visits emit few tokens for a slot.
_ROWS = 8


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
      int32 [M, 1 + 2N] for `read_logprobs`; rows beyond the emitted tokens are garbage.
    """
    assert state.hidden is not None, "the engine was made for log-probabilities"
    target = make_plan(params.spec, config).target
    hidden, tokens = state.hidden[slot], state.decode.tokens[slot]

    def rank(i: jax.Array, ranked: jax.Array) -> jax.Array:
        # The last rows overlap those before them where M is no multiple.
        start = jnp.minimum(i * _ROWS, tokens.shape[0] - _ROWS)
        rows, token = (jax.lax.dynamic_slice_in_dim(x, start, _ROWS) for x in (hidden, tokens))
        logits = target.apply(params.target, rows, method="logits").astype(jnp.float32)
        logprob = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(logprob, token[:, None], axis=1)
        best, index = top_k(logprob, count)
        bits = [jax.lax.bitcast_convert_type(x, jnp.int32) for x in (own, best)]
        new = jnp.concatenate([*bits, index], axis=1)
        return jax.lax.dynamic_update_slice_in_dim(ranked, new, start, 0)

    rounds = (state.decode.emitted[slot] + _ROWS - 1) // _ROWS
    empty = jnp.zeros((tokens.shape[0], 1 + 2 * count), jnp.int32)
    return constrain(jax.lax.fori_loop(0, rounds, rank, empty), PartitionSpec())


def read_logprobs(ranked: jax.Array, tokens: int, alternatives: int) -> list[TokenLogprob]:
    """Wait for `rank_tokens` and read the first `tokens` rows of its result.

    Args:
      alternatives: how many to return for each token, at most N.
    """
    rows = np.asarray(ranked)[:tokens]
    count = rows.shape[1] // 2
    values, ids = rows[:, : 1 + count].copy().view(np.float32), rows[:, 1 + count :]
    return [
        TokenLogprob(own, tuple(zip(index[:alternatives], best[:alternatives], strict=True)))
        for (own, *best), index in zip(values.tolist(), ids.tolist(), strict=True)
    ]
