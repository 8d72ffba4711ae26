"""Grow the tree of a round as it was before a policy cut it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.output import DraftTree
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState, Request, Tree
from jaxspec.round.commit import absorb_pending
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.loop import run
from jaxspec.round.plan import DecodeConfig
from jaxspec.round.quick_jit import quick_jit
from jaxspec.tuner.tuner import tune


def grow_unpruned_tree(params: Params, prompt: Any, round: int, **options: Any) -> DraftTree:
    """Run a decode up to a round, then draft and grow that round's tree without the policy.

    Args:
      params: weights, from `jaxspec.load`.
      prompt: a single prompt.
      round: number of the round, from 1.
      options: keyword arguments of `jaxspec.decode`. Earlier rounds follow its policy, so the tree
        is the one that the policy cut.

    Raises:
      ValueError: as `jaxspec.decode`.
    """
    session, _ = tune(prepare(params, prompt, **options))
    with matmul_precision(session):
        state = run_prefill(session)
        if round > 1:
            state = run(
                session.params, session.request, state, jnp.int32(round - 1), config=session.config
            )
        tree = jax.device_get(_grow_tree(session.params, session.request, state, session.config))
    rows = int(tree.size[0])
    return DraftTree(
        *(
            np.asarray(field[0, :rows])
            for field in (tree.token, tree.parent, tree.depth, tree.logprob)
        )
    )


@quick_jit(static_argnames=("config",))
def _grow_tree(params: Params, request: Request, state: DecodeState, config: DecodeConfig) -> Tree:
    state = absorb_pending(make_round(params, request, config), state)
    round = make_round(params, request, dataclasses.replace(config, policy=None))
    noise = round.noise(state.cache.length + 1, round.plan.longest)
    return grow(round, state, draft(round, state, noise))
