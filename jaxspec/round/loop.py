"""The decoding loop on the device, and the order of the phases of a round.

A round drafts, grows, verifies, commits and absorbs. Autoregressive decoding runs the same loop
without a drafter: its tree is the root alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.columns import write_columns
from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState, Pool, Request, Tree
from jaxspec.core.tree import keep_rows, pad_rows, root_only
from jaxspec.policies.protocol import Observation, Outcome
from jaxspec.round.commit import absorb, absorb_pending, commit, enqueue, has_room, remember
from jaxspec.round.context import Round, make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import find_drawn, grow, show_tree
from jaxspec.round.plan import DecodeConfig
from jaxspec.round.proposals import Drafted
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.stop_rule import show_pool
from jaxspec.round.verify import fit_rows, verify, verify_rows
from jaxspec.targets.sharding.state import place_state

Carry = tuple[DecodeState, jax.Array]  # the state; int32 [], rounds run so far


@quick_jit(leave_out=True, static_argnames=("config",), donate_argnames=("state",))
def run(
    params: Params,
    request: Request,
    state: DecodeState,
    max_rounds: jax.Array,
    *,
    config: DecodeConfig,
) -> DecodeState:
    """Run up to `max_rounds` rounds on the device, or fewer if every sequence finishes.

    `state` is donated: its caches are updated in place. `stream` runs one round at a time. If the
    policy may skip drafting, the loop holds two inner loops: autoregressive rounds until the policy
    drafts, then drafted rounds until it stops.
    """
    round = make_round(params, request, config)

    def unfinished(carry: Carry) -> jax.Array:
        state, count = carry
        return (count < max_rounds) & ~jnp.all(state.done)

    def wants_draft(state: DecodeState) -> jax.Array:
        ask = round.policy.act.draft
        assert ask is not None, "rows are queued only under a policy that may skip drafting"
        return ask(request.controls, state.control, Observation(state.cache.length, ~state.done))

    def repeat(
        one: Callable[[Round, DecodeState], DecodeState],
        wanted: Callable[[DecodeState], jax.Array | bool],
        carry: Carry,
    ) -> Carry:
        """Run rounds of one kind while `wanted` holds."""
        return jax.lax.while_loop(
            lambda carry: unfinished(carry) & wanted(carry[0]),
            lambda carry: (place_state(one(round, carry[0])), carry[1] + 1),
            carry,
        )

    def alternate(carry: Carry) -> Carry:
        state, count = repeat(
            autoregressive_round, lambda state: has_room(state) & ~wants_draft(state), carry
        )
        return repeat(drafted_round, wants_draft, (absorb_pending(round, state), count))

    if state.pending is None:
        return repeat(drafted_round, lambda state: True, (state, jnp.int32(0)))[0]
    # Use loops, not a conditional: XLA would copy the caches that a conditional carries.
    return jax.lax.while_loop(unfinished, alternate, (state, jnp.int32(0)))[0]


def drafted_round(round: Round, state: DecodeState) -> DecodeState:
    """Draft, grow, verify, commit, absorb."""
    policy, before = round.plan.policy, state
    noise = round.noise(state.cache.length + 1, round.plan.longest)
    drafted = draft(round, state, noise)
    state = remember(round, state, drafted.scratch)
    tree, steps, scores = grow(round, state, drafted), jnp.int32(drafted.steps), None
    if policy is not None:
        shown = show_tree(round.growth, drafted, tree)
        scores = None if shown is tree else shown.logprob
        tree = choose_size(round, state, drafted, tree, shown)
    verified = verify(round, state, tree, noise, find_drawn(round, drafted))
    state, committed = commit(round, state, tree, verified)
    state = observe(round, before, state, steps, scores)
    return absorb(round, state, committed)


def choose_size(
    round: Round, state: DecodeState, drafted: Drafted, tree: Tree, shown: Tree
) -> Tree:
    """Keep the rows that the policy verifies, if it decides about them.

    Args:
      shown: see `show_tree`.
    """
    if round.policy.act.rows is None:
        return tree
    figures: dict[str, Any] = drafted.figures or {}

    def at(pool: Pool | None, tree: Tree) -> Observation:
        frontier = None
        if pool is not None and drafted.frontier is not None:
            frontier = jnp.take_along_axis(pool.logprob, drafted.frontier, axis=1)
        first = state.cache.length, ~state.done, jnp.int32(drafted.steps), pool, frontier
        return Observation(*first, tree=tree, **figures)

    seen, pool = at(drafted.pool, tree), drafted.pool
    if shown is not tree:
        pool = None if pool is None else show_pool(pool, drafted.scores)
        seen = at(pool, shown).replace(built=seen)
    rows = round.policy.act.rows(round.request.controls, state.control, seen)
    return keep_rows(tree, jnp.broadcast_to(rows, state.done.shape))


def autoregressive_round(round: Round, state: DecodeState) -> DecodeState:
    """Run a round in which the policy does not draft.

    It costs a round of `ar`. What the drafter has yet to absorb waits in a queue.
    """
    plan, before = round.plan, state
    tree = root_only(state.root, 1)
    noise = round.noise(state.cache.length + 1, 1)
    verified = verify_rows(round, state, fit_rows(tree, 1), noise, None, longest=1)
    state, committed = commit(round, state, tree, verified)
    path = jnp.pad(state.accepted.path, ((0, 0), (0, plan.longest - 1)))
    state = state.replace(
        tree=pad_rows(tree, plan.widths[-1]), accepted=state.accepted.replace(path=path)
    )
    return enqueue(observe(round, before, state, jnp.int32(-1)), committed)


def observe(
    round: Round,
    before: DecodeState,
    state: DecodeState,
    steps: jax.Array,
    scores: jax.Array | None = None,
) -> DecodeState:
    """Show the policy, if the call has one, the outcome of a round.

    Args:
      before: the state at the start of the round.
      state: the state after its commit.
      steps: int32 [], draft steps of the round; -1 for an autoregressive round.
      scores: float32 [B, N], of the tree at the scale that the policy reads; None: its own.
    """
    policy = round.plan.policy
    if policy is None:
        return state
    live, tree = ~before.done, state.tree
    outcome = Outcome(steps >= 0, tree.size, steps, tree, state.accepted, before.cache.length, live)
    if scores is not None:
        scores = jnp.where(tree.logprob > -jnp.inf, scores, -jnp.inf)
        outcome = outcome.replace(tree=tree.replace(logprob=scores), built=outcome)
    taken = jnp.broadcast_to(steps, live.shape)[:, None]
    assert state.round_steps is not None, "prefill makes room for them under a policy"
    return state.replace(
        control=policy.observe(round.request.controls, before.control, outcome),
        round_steps=write_columns(state.round_steps, taken, before.rounds),
    )
