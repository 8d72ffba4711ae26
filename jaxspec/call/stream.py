"""Stream a session: the device runs the next round while the host reads the one before.

If the policy observes every round, each round waits until the host has read the one before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.hooks import UNTUNED, Hooks
from jaxspec.call.observed_rounds import run_observed, wants_each_round
from jaxspec.call.results import Seconds, make_outputs, start_text
from jaxspec.call.session import Session, matmul_precision
from jaxspec.call.start import start_session
from jaxspec.core.state import DecodeState
from jaxspec.round.loop import run


class StreamedRound(NamedTuple):
    """The part of a stream that the prefill or a round emits.

    Attributes:
      text: text that it completes; None if the model has no tokenizer.
      tokens: token ids that it emits.
      drafted: whether it is a round's: all its tokens but the last are then accepted draft tokens.
    """

    text: str | None
    tokens: list[int]
    drafted: bool


def stream_rounds(session: Session, hooks: Hooks = UNTUNED) -> Iterator[StreamedRound]:
    """Yield what the prefill and each round emit.

    Joined, the texts are `Output.text`, and the tokens `Output.tokens`. Characters that may turn
    out to begin a stop string are held back. The generator returns the `Output`.

    Args:
      session: of one prompt, see `jaxspec.call.session.prepare`.
      hooks: who tunes the call.
    """
    started = time.perf_counter()
    with matmul_precision(session):
        state, prefill = start_session(session, hooks)
        session = hooks.after_prefill(session, state)
    decoding = time.perf_counter()
    text, emitted, drafted = start_text(session, 0), 0, False
    news = read_news(state, 0)
    observed = wants_each_round(session)
    while True:
        if not observed:  # the round is dispatched, and runs while the host reads
            state = _dispatch(session, state)
        done, total, *tokens = np.asarray(news).tolist()
        tokens, emitted = tokens[: total - emitted], total
        piece = text.add(tokens)
        if done or text.stopped:
            break
        yield StreamedRound(piece, tokens, drafted)
        if observed:
            with matmul_precision(session):
                session, state = run_observed(session, state)
        drafted, news = True, read_news(state, emitted)
    seconds = Seconds(prefill, time.perf_counter() - decoding, decoding - started - prefill)
    output = make_outputs(session, state, seconds)[0]
    hooks.observe(session, [output], False)
    before = emitted - len(tokens)
    yield StreamedRound(text.rest(piece, output.text), output.tokens[before:], drafted)
    return output


def _dispatch(session: Session, state: DecodeState) -> DecodeState:
    """Start a round and return at once."""
    with matmul_precision(session):
        return run(session.params, session.request, state, np.int32(1), config=session.config)


def read_news(state: DecodeState, shown: int) -> jax.Array:
    """Begin to read what is new of the first sequence, see `_pack_news`."""
    longest = state.accepted.path.shape[1]
    return _pack_news(state.tokens, state.emitted, state.done, np.int32(shown), longest)


@functools.partial(jax.jit, static_argnames="longest")
def _pack_news(
    tokens: jax.Array, emitted: jax.Array, done: jax.Array, shown: jax.Array, longest: int
) -> jax.Array:
    """Pack what the host reads of the first sequence into one array.

    Args:
      tokens, emitted, done: of the state after a round. The caches are left out, so that calls of
        other capacities share the program.
      shown: int32 [], tokens that the host has read before.
      longest: most tokens of a round, A.

    Returns:
      int32 [2 + A]: whether it is done, emitted tokens, and the tokens after the first `shown`.
    """
    news = jax.lax.dynamic_slice_in_dim(tokens[0], shown, longest)
    head = jnp.stack([done[0].astype(jnp.int32), emitted[0]])
    return jnp.concatenate([head, news])
