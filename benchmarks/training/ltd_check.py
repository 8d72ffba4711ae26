"""Check a record against real decodes: they must build its trees and commit its tokens.

    python -m benchmarks ltd-check --drafter eagle3 --prompts heldout.jsonl.gz --limit 2 \\
      --max-new-tokens 64

The command takes the options of `training.rl.record` except `out`. It decodes each text with a few
pairs of depth and size, and compares every round with the record of its position. Differences can
come only from ties that two compilations break differently.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxspec
from jaxspec.builders.trees.rows import choose_rows
from jaxspec.call.options import group_options
from jaxspec.policies.learned.ltd_features import pool_size
from jaxspec.policies.rules.static import make_static
from training.policies.options import encode_prompts
from training.rl.options import TextOptions, decode_options, sees_pool
from training.rl.record import record_texts

# Smallest share of rounds that must agree with the record.
ENOUGH = 0.99


def replayed(params, prompt: list[int], choices, options: TextOptions) -> tuple[int, int, int]:
    """Decode one prompt with several constants and compare the rounds with its record.

    Args:
      params: target and drafter.
      prompt: token ids.
      choices: pairs of draft steps and rows to verify, the rows among `options.sizes`.
      options: of the record.

    Returns:
      (rounds, rounds with the recorded tree, rounds with the recorded tree and committed tokens).
    """
    found = record_texts(params, [prompt] * options.batch, options)
    found = jax.tree.map(lambda x: x[found["prompt"] == 0], found)
    sizes, pool = tuple(options.sizes), sees_pool(params, options)
    rounds = same = right = 0
    for steps, rows in choices:
        policy = make_static(steps if pool else None, rows, widths=tuple(sorted({1, *sizes})))
        settings = decode_options(params, options) | {"policy": policy}
        out = jaxspec.decode(
            params,
            prompt,
            trace=True,
            max_new_tokens=options.max_new_tokens,
            **group_options(**settings),
        )
        at = 0
        for one in out.rounds:
            if at >= len(found["context"]):
                break
            seen = jax.tree.map(lambda x, at=at: x[at], found["seen"])
            fits = _equal(
                one.tree, _of_pool(seen, steps, rows, options) if pool else _of_tree(seen, rows)
            )
            expected = found["committed"][at, steps if pool else 0, sizes.index(rows)]
            rounds += 1
            same += fits
            right += fits and len(one.path) == expected
            at += len(one.path)
    return rounds, same, right


def _of_pool(pool, steps: int, rows: int, options: TextOptions):
    reached = np.arange(len(pool.token)) < pool_size(options.width, steps)
    tree = _finish(
        pool.replace(logprob=jnp.where(reached, pool.logprob, -jnp.inf)), rows, options.steps + 1
    )
    return np.asarray(tree.token)[: int(tree.size)], np.asarray(tree.parent)[: int(tree.size)]


def _of_tree(tree, rows: int):
    size = min(rows, int(tree.size))
    return tree.token[:size], tree.parent[:size]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _finish(pool, rows: int, longest: int):
    return choose_rows(pool, jnp.int32(0), rows, longest)


def _equal(real, recorded) -> bool:
    """Tell whether two trees have the same rows.

    The root's token is not compared: it follows from the position.
    """
    token, parent = recorded
    return np.array_equal(real.token[1:], token[1:]) and np.array_equal(real.parent, parent)


def main(options: TextOptions) -> int:
    """Print the shares of rounds that agree; return 1 if fewer than `ENOUGH` do, else 0."""
    params = options.load()
    prompts = encode_prompts(params, options.read(params))
    sizes, total = options.sizes, np.zeros(3, int)
    choices = [
        (min(1, options.steps), sizes[min(1, len(sizes) - 1)]),
        (options.steps // 2, sizes[len(sizes) // 2]),
        (options.steps, sizes[-1]),
        (options.steps, sizes[0]),
    ]
    for prompt in tqdm(prompts, desc="check", unit="prompt"):
        total += replayed(params, prompt, choices, options)
    rounds, same, right = total.tolist()
    if not rounds:
        raise ValueError(
            f"no text of {options.prompts} has a round: give other prompts or more max_new_tokens"
        )
    print(
        f"{rounds} rounds: {same / rounds:.2%} have the recorded tree, "
        f"{right / rounds:.2%} also commit the recorded tokens"
    )
    return int(right < ENOUGH * rounds)
