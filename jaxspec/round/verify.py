"""Verify: run the target over the draft tree and accept one of its paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.acceptance import accept_match, accept_rejection, accept_sequential
from jaxspec.core.cache import Rows, gather_path
from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.recurrent import Stash
from jaxspec.core.sampling.sampling import draw
from jaxspec.core.sampling.settings import MIN_TEMPERATURE
from jaxspec.core.state import Accepted, DecodeState, KVCache, RecurrentState, Tree
from jaxspec.core.tree import pad_rows, take_rows
from jaxspec.round.adjust_logits import adjust_target
from jaxspec.round.context import Drawn, Round, Verified
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.sizes import run_smallest
from jaxspec.targets.sharding.forward import bind_target
from jaxspec.targets.transformer import Transformer
from pallas_kernels.device import current_device

# Children of a node that acceptance `rejection` tries. Each try is compiled, and the prior of
# `sample_candidates` expects to accept the eleventh child once in 240,000 times.
_SIBLINGS = 10


class TargetPass(NamedTuple):
    """What the target computes for N tree rows.

    Attributes:
      hidden: [B, N, E], after the final norm.
      k, v: of each group of layers [L, B, N, K, D], keys and values.
      features: [B, N, F], outputs of the layers that the drafter reads.
      stash: of each group of recurrent layers.
    """

    hidden: jax.Array
    k: Rows
    v: Rows
    features: jax.Array
    stash: tuple[Stash, ...] = ()


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
    return TargetPass(out.hidden, out.k, out.v, out.features, out.stash)


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
    k, v, stash = gather_path((passed.k, passed.v, passed.stash), accepted.path)
    return Verified(accepted, k, v, features, hidden, stash)


@quick_jit(leave_out=True)
def score_rows(
    params: Params,
    cache: KVCache,
    before: tuple[RecurrentState, ...],
    tree: Tree,
    accepted: Accepted,
    temperature: jax.Array,
) -> jax.Array:
    """Return the target's log-probability of each row's token given its parent, for traces.

    The distribution is softmax(logits / T) of the target's raw logits, over the whole vocabulary:
    before penalties, excluded end tokens, top-k, top-p and min-p. T is the sampling temperature,
    and 1 in greedy decoding. This is a program of its own, which runs the target over the tree once
    more, so that a round's program is the same with a trace and without.

    Args:
      cache, tree, accepted: after the round; rows that it committed are masked.
      before: states of recurrent layers before it.
      temperature: float32 [] or [B].

    Returns:
      float32 [B, N]; 0 for the root, and meaningless for padding.
    """
    target, rows = bind_target(Transformer(params.spec.target), params.target), tree.token.shape[1]
    length, wide = cache.length - accepted.count, fit_rows(tree, rows)
    cache = cache.replace(length=length, recurrent=before)
    out = target(wide.token, cache.length[:, None] + wide.depth, cache, wide.ancestors)
    divisor = jnp.where(temperature < MIN_TEMPERATURE, 1.0, temperature)
    logits = target(out.hidden, method="logits").astype(jnp.float32)
    logits = logits / jnp.reshape(divisor, (-1, 1, 1))
    above = jnp.maximum(tree.parent, 0)
    total = jnp.take_along_axis(jax.nn.logsumexp(logits, axis=-1), above, axis=1)
    own = logits[jnp.arange(len(above))[:, None], above, tree.token]
    return constrain(jnp.where(tree.parent < 0, 0.0, own - total), PartitionSpec())


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
