"""Draft: run the drafter after the root of the next tree."""

from __future__ import annotations

import jax

from jaxspec.core.state import DecodeState
from jaxspec.engine.proposals import Drafted, propose, rank_candidates
from jaxspec.engine.round import Round
from jaxspec.engine.steps import draft_in_steps


def draft(round: Round, state: DecodeState, noise: jax.Array | None) -> Drafted:
    """Run the drafter after the root; a drafter that works in steps grows the tree as it goes.

    Args:
      noise: float32 [B, A, V], of the tokens after the root; None for greedy decoding.
    """
    if round.plan.drafter is None:
        return Drafted(None)
    if round.plan.in_steps:
        return draft_in_steps(round, state, noise)
    logits = propose(round, state).logits[:, 0, : round.plan.builder.longest]
    return Drafted(*rank_candidates(round, state, noise, logits, 0))
