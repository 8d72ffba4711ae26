"""Compute what rounds of any block size commit on known texts, without verifying them.

Text is unique for a seed, greedy or sampled, and a block drafter's proposal at a position depends
only on the text before it and the position's noise, not on earlier rounds. So decode each text once
and prefill prompt and answer once, which gives the drafter its context at every position. Each
block size then costs only the drafter's forward passes in its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.call.text.token_ids import number_sequences
from jaxspec.core.params import Params
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.quick_jit import quick_jit

from ..replay.committed import committed_of_tree


def decode_settings(size: int, builder: str, budget: int) -> dict:
    """Return options of `jaxspec.decode` for rounds of this block size.

    A chain verifies the whole block, a tree verifies `budget` rows.
    """
    return {
        "builder": builder,
        "budget": size if builder == "chain" else budget,
        "block_size": size,
    }


def committed_rounds(
    params: Params,
    drafter: str,
    prompts: Sequence[list[int]],
    sizes: Sequence[int],
    *,
    builder="chain",
    budget=32,
    **options,
) -> list[list[list[int]]]:
    """Return the committed tokens of every round: a list by prompt, block size and round.

    Args:
      params: target and drafter.
      drafter: name of a block drafter.
      prompts: token ids of a batch of prompts.
      sizes: block sizes.
      builder: of the trees.
      budget: verification budget of the trees; a chain verifies the whole block.
      options: further options of `jaxspec.decode`: `max_new_tokens`, `temperature`, `seed`.
    """
    drawn = {name: options[name] for name in ("temperature", "seed") if name in options}
    trained = params.spec.drafter(drafter).block_size
    outputs = jaxspec.decode(
        params,
        list(prompts),
        drafter=drafter,
        **group_options(**decode_settings(trained, builder, budget), **options),
    )
    texts = [list(prompt) + out.tokens for prompt, out in zip(prompts, outputs, strict=True)]
    ends = np.array([len(text) - 1 for text in texts], np.int32)
    starts = np.array([len(prompt) for prompt in prompts], np.int32)
    # No round starts at a text's last token, and the target may have no position after it.
    session = prepare(
        params,
        [text[:-1] for text in texts],
        max_new_tokens=1,
        drafter=drafter,
        **group_options(**decode_settings(trained, builder, budget), **drawn),
    )
    tokens = np.full((len(texts), session.tokens.shape[1] + 1 + max(sizes)), -1, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    # The noise is that of the prompts' answers, not of texts that begin with the answers.
    request = session.request.replace(sequence=number_sequences(list(prompts)))
    found = []
    with matmul_precision(session):
        state = run_prefill(session)
        for size in sizes:
            config = prepare(
                params,
                [[0]],
                drafter=drafter,
                max_new_tokens=1,
                **group_options(**decode_settings(size, builder, budget), **drawn),
            ).config
            rounds = _replay(params, request, state, tokens, starts, ends, config=config)
            found.append([row[row > 0].tolist() for row in np.asarray(rounds)])
    return [list(own) for own in zip(*found, strict=True)]


@quick_jit(static_argnames="config")
def _replay(params, request, state, tokens, start, end, *, config):
    """Return the committed tokens of the rounds from `start` on: int32 [B, T], 0 after the last.

    Args:
      state: after a prefill of the texts; only the drafter's context is read.
      tokens: int32 [B, T], the texts, followed by -1 for at least the length of a round.
      start, end: int32 [B], indices of an answer's first and last token.
    """
    round = make_round(params, request, config)
    plan = round.plan

    def body(carry):
        at, number, found = carry
        ahead = jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, plan.longest))(
            tokens, at
        )
        here = state.replace(root=ahead[:, 0], draft=state.draft.replace(length=at), done=at >= end)
        noise = round.noise(at + 1, plan.longest)
        tree = grow(round, here, draft(round, here, noise))
        reached = jax.vmap(
            lambda tree, text: committed_of_tree(tree, text, plan.widths[-1:])[0, 0]
        )(tree, ahead[:, 1:])
        count = jnp.where(here.done, 0, jnp.minimum(reached, end - at))
        return at + count, number + 1, found.at[:, number].set(count)

    begun = (start, jnp.int32(0), jnp.zeros(tokens.shape, jnp.int32))
    return jax.lax.while_loop(lambda carry: jnp.any(carry[0] < end), body, begun)[2]
