"""The tree of a round before a policy cut it, for pictures of the cut."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.engine.commit import absorb_pending
from jaxspec.engine.draft import draft
from jaxspec.engine.grow import grow
from jaxspec.engine.loop import run
from jaxspec.engine.output import DraftTree
from jaxspec.engine.round import make_round
from jaxspec.engine.session import precision, prefilled, prepare


def uncut_tree(params, prompt, round: int, **options) -> DraftTree:
    """What the drafter and the builder make of the state that round `round` of a decode starts
    from, with no policy.

    Args:
      prompt: a single one. round: from 1. options: of `jaxspec.decode`, its `policy` among them:
        the rounds before are the decode's own, so that the tree is the one that the policy cut.

    Raises:
      ValueError: as `jaxspec.decode`.
    """
    session = prepare(params, prompt, **options)
    with precision(session):
        state = prefilled(session)
        if round > 1:
            state = run(
                session.params, session.request, state, jnp.int32(round - 1), config=session.config
            )
        tree = jax.device_get(_tree(session.params, session.request, state, session.config))
    rows = int(tree.size[0])
    return DraftTree(
        *(
            np.asarray(field[0, :rows])
            for field in (tree.token, tree.parent, tree.depth, tree.logprob)
        )
    )


@functools.partial(jax.jit, static_argnames=("config",))
def _tree(params, request, state, config):
    state = absorb_pending(make_round(params, request, config), state)
    round = make_round(params, request, dataclasses.replace(config, policy=None))
    noise = round.noise(state.cache.length + 1, round.plan.longest)
    return grow(round, state, draft(round, state, noise))
