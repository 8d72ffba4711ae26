"""Verify: run the target over the draft tree and accept one of its paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.acceptance import accept_match, accept_rejection, accept_sequential
from jaxspec.core.cache import gather_path
from jaxspec.core.sampling.sampling import draw
from jaxspec.core.state import Accepted, DecodeState, Tree
from jaxspec.core.tree import pad_rows, take_rows
from jaxspec.round.adjust_logits import adjust_target
from jaxspec.round.context import Drawn, Round, Verified
from jaxspec.round.sizes import run_smallest
from pallas_kernels.device import current_device

# Children of a node that acceptance `rejection` tries. Each try is compiled, and the prior of
# `sample_candidates` expects to accept the eleventh child once in 240,000 times.
_SIBLINGS = 10


class TargetPass(NamedTuple):
    """What the target computes for N tree rows.

    Attributes:
      hidden: [B, N, E], after the final norm.
      k, v: [L, B, N, K, D], keys and values.
      features: [B, N, F], outputs of the layers that the drafter reads.
    """

    hidden: jax.Array
    k: jax.Array
    v: jax.Array
    features: jax.Array


def verify(
    round: Round,
    state: DecodeState,
    tree: Tree,
    noise: jax.Array | None,
    drawn: Drawn | None = None,
) -> Verified:
    """Verify with the smallest compiled width that holds every sequence's tree.

    Args:
      noise: float32 [B, A, V], noise of the tokens after the root; None for greedy decoding.
      drawn: read by acceptance `rejection`.
    """

    def at_width(width: int) -> Callable[[], Verified]:
        rows = fit_rows(tree, width)
        return lambda: verify_rows(round, state, rows, noise, drawn, round.plan.longest)

    widths = round.plan.widths
    return run_smallest(jnp.max(tree.size), widths, [at_width(width) for width in widths])


def verify_rows(
    round: Round,
    state: DecodeState,
    tree: Tree,
    noise: jax.Array | None,
    drawn: Drawn | None,
    longest: int,
) -> Verified:
    """Verify all rows of `tree`. Other arguments are those of `verify`.

    Args:
      longest: A, largest number of tokens that the round commits; static.
    """
    passed = run_target(round, state, tree)
    logits = round.target_head.unembed(passed.hidden)
    accepted = accept(round, state, tree, logits, noise, drawn, longest - 1)
    return keep_path(passed, accepted, with_hidden=bool(round.config.evidence))


def run_target(round: Round, state: DecodeState, tree: Tree) -> TargetPass:
    """Run the target over the rows of `tree`, which follow the cached tokens."""
    out = round.target(
        tree.token,
        state.cache.length[:, None] + tree.depth,
        state.cache,
        tree.ancestors,
        feature_layers=round.feature_layers,
    )
    return TargetPass(out.hidden, out.k, out.v, out.features)


def accept(
    round: Round,
    state: DecodeState,
    tree: Tree,
    logits: jax.Array,
    noise: jax.Array | None,
    drawn: Drawn | None,
    longest: int,
) -> Accepted:
    """Choose a path by the call's acceptance rule.

    Args:
      logits: [B, N, V], raw logits of the target.
      noise, drawn: see `verify`.
      longest: largest depth that may be accepted; static.
    """
    config, request = round.config, round.request
    sampling, values = config.sampling, request.sampling
    logits = adjust_target(round, logits, tree, state.counts, state.emitted, longest)
    if config.acceptance == "match" or sampling.greedy:
        return accept_match(tree, draw(logits, noise, tree.depth, sampling, values), longest)
    known = (sampling, values, round.keys, state.cache.length, longest)
    if config.acceptance == "sequential":
        return accept_sequential(tree, logits, *known)
    if drawn is None:
        raise ValueError("acceptance 'rejection' needs the draft's log-probabilities")
    siblings = min(round.growth.candidates, _SIBLINGS)
    below = drawn.below
    if below is not None:  # for the capacity; the tree may be cut or padded
        rows = np.minimum(np.arange(tree.token.shape[1]), below.shape[1] - 1)
        below = below[:, rows]
    return accept_rejection(tree, logits, drawn.logprob, *known, siblings, below)


def keep_path(passed: TargetPass, accepted: Accepted, with_hidden: bool = False) -> Verified:
    """Select what the target computed for the accepted rows."""
    rows = accepted.path[..., None]
    features = jnp.take_along_axis(passed.features, rows, axis=1)
    hidden = jnp.take_along_axis(passed.hidden, rows, axis=1) if with_hidden else None
    k, v = gather_path(passed.k, accepted.path), gather_path(passed.v, accepted.path)
    return Verified(accepted, k, v, features, hidden)


def fit_rows(tree: Tree, width: int) -> Tree:
    """Cut or pad the tree to `width` rows, or to the smallest forward pass if that is larger."""
    least, rows = _least_rows(tree.token.shape[0]), take_rows(tree, width)
    return rows if width >= least else pad_rows(rows, least)


def _least_rows(batch: int) -> int:
    """Return the rows of the smallest forward pass: two for one sequence on a GPU, else one.

    On GPUs XLA computes a product of one row as a multiplication and a sum, and writes the
    intermediate result, which is as large as the weight, to memory. For Qwen3-8B that is 8 % more
    traffic per step (compiled for an H100 by jax 0.10.2).
    """
    return 2 if batch == 1 and current_device().platform == "cuda" else 1
