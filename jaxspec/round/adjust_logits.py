"""Adjust logits by the tokens before them, as the call asks."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.sampling.penalties import forbid, list_paths, penalise
from jaxspec.core.sampling.settings import Penalties
from jaxspec.core.state import DecodeState, Tree
from jaxspec.round.context import Round


def adjust_target(
    round: Round,
    logits: jax.Array,
    tree: Tree,
    counts: jax.Array | None,
    emitted: jax.Array,
    depth: int,
) -> jax.Array:
    """Penalise tokens in the target's logits that are there already, and exclude early end tokens.

    A call without penalties and a least number of tokens compiles nothing of this.

    Args:
      logits: [B, N, V], the target's after each row of a tree.
      tree: its root is the last token that is counted.
      counts: int32 [B, V], of the tokens up to the root; None without penalties.
      emitted: int32 [B], tokens generated so far, the root included.
      depth: largest depth of a row that may be accepted; static.

    Returns:
      [B, N, V]: float32, or the logits as they are.
    """
    penalties, stop_from = round.request.sampling.penalties, round.request.stop_from
    if penalties is not None:
        assert counts is not None, "tokens are counted where there are penalties"
        paths = list_paths(tree, depth)
        logits = penalise(logits.astype(jnp.float32), counts[:, None], paths, penalties)
    if stop_from is not None:
        early = emitted[:, None] + tree.depth < stop_from[:, None]
        logits = forbid(logits.astype(jnp.float32), list_ends(round), early)
    return logits


def asks_now(round: Round, state: DecodeState) -> jax.Array:
    """Whether any of some sequences with settings of their own needs its logits adjusted, bool []."""
    penalties, stop_from = round.request.sampling.penalties, round.request.stop_from
    assert penalties is not None and stop_from is not None, "mixed settings hold them all"
    return penalties.some.any() | (state.emitted < stop_from).any()


def adjust_drafts(round: Round, state: DecodeState, logits: jax.Array) -> jax.Array:
    """Adjust a drafter's logits [B, D, V] by the context alone, so that more of its drafts are
    right.

    Paths are left to the target: they change few tokens.

    Returns:
      [B, D, V]: float32, or the logits as they are.
    """
    penalties, stop_from = round.request.sampling.penalties, round.request.stop_from

    def change(logits: jax.Array) -> jax.Array:
        if penalties is not None:
            assert state.counts is not None, "tokens are counted where there are penalties"
            each = Penalties(*(jnp.reshape(x, (-1, 1)) for x in penalties))
            nothing = jnp.zeros((1, 0), jnp.int32)
            logits = penalise(logits, state.counts[:, None], nothing, each)
        if stop_from is not None:
            early = jnp.broadcast_to((state.emitted < stop_from)[:, None], logits.shape[:2])
            logits = forbid(logits, list_ends(round), early)
        return logits

    if round.config.sampling.mixed:
        return change_if(asks_now(round, state), change, logits.astype(jnp.float32))
    if penalties is None and stop_from is None:
        return logits
    return change(logits.astype(jnp.float32))


def change_if(
    asked: jax.Array, change: Callable[[jax.Array], jax.Array], logits: jax.Array
) -> jax.Array:
    """Return `change(logits)` where `asked` bool [] holds, else the logits.

    On a CPU it is a loop of at most one turn, not a conditional: that one would copy logits that
    stay the same. On a GPU a loop would end the command buffer of the round, and a conditional does
    not.
    """

    def loop(asked: jax.Array, logits: jax.Array) -> jax.Array:
        def turn(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return change(carry[0]), jnp.bool_(False)

        return jax.lax.while_loop(lambda carry: carry[1], turn, (logits, asked))[0]

    def branch(asked: jax.Array, logits: jax.Array) -> jax.Array:
        return jax.lax.cond(asked, change, lambda same: same, logits)

    return jax.lax.platform_dependent(asked, logits, cpu=loop, default=branch)


def list_ends(round: Round) -> jax.Array:
    """List the tokens that may not come before `Request.stop_from`, int32 [E] or [B, 1, E].

    The model's own end tokens are among them even if they end nothing, as in vLLM.
    """
    stop, own = round.request.stop, jnp.asarray(round.params.spec.eos, jnp.int32)
    if stop.ndim == 1:
        return jnp.concatenate([stop, own])
    own = jnp.broadcast_to(own, (stop.shape[0], own.size))
    return jnp.concatenate([stop, own], axis=1)[:, None]
