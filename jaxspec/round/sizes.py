"""Sizes that decide which program a call runs: few of them, so that calls share programs.

Kernels read the live part of a cache, so a larger one costs memory and no time. Parts of a round
are compiled for a few sizes, of which a round runs the smallest that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from pallas_kernels.device import current_device

Result = TypeVar("Result")

# Fewest rows of a cache, and fewest tokens that a call has room for.
LEAST_ROWS, LEAST_TOKENS = 256, 64
# Rows of the cache of a conversation: this, or 4, 16, … times as many. Its next prompts are longer,
# so each step leaves room to grow.
CONVERSATION, GROWTH = 2048, 4
# Prompt rows that one forward runs. On a CPU every row costs time; a GPU computes 256 rows of a
# model in bfloat16 in about the time in which it reads the weights.
CPU_CHUNK, GPU_CHUNK = 64, 256


def prompt_chunk() -> int:
    """Return the prompt rows of one forward, for the device that programs are traced for now."""
    return CPU_CHUNK if current_device().platform == "cpu" else GPU_CHUNK


def room_for(max_new_tokens: int) -> int:
    """Return the generated tokens that the state of a call has room for: a power of two."""
    return max(LEAST_TOKENS, power_of_two(max_new_tokens))


def choose_capacity(
    prompt: int, max_new_tokens: int, slack: int, positions: int, *, grows: bool = False
) -> int:
    """Choose the rows of the key-value caches: a power of two, or what all positions need if less.

    Args:
      prompt: tokens of the longest prompt.
      max_new_tokens: limit of the call.
      slack: rows beyond the sequence that rounds write.
      positions: of the model.
      grows: whether longer prompts will follow, as in a conversation.
    """
    rows = max(LEAST_ROWS, power_of_two(rows_needed(prompt, max_new_tokens, slack)))
    if grows:
        wanted, rows = rows, CONVERSATION
        while rows < wanted:
            rows *= GROWTH
    return min(rows, rows_needed(positions, 0, slack))


def check_capacity(capacity: int, prompt: int, max_new_tokens: int, slack: int) -> int:
    """Return the rows of caches of a capacity that the caller fixed: whole chunks.

    Raises:
      ValueError: a call needs more.
    """
    least, rows = rows_needed(prompt, max_new_tokens, slack), round_up(capacity, prompt_chunk())
    if rows < least:
        raise ValueError(
            f"capacity is {capacity}: a prompt of {prompt} tokens and "
            f"max_new_tokens={max_new_tokens} need {least} rows"
        )
    return rows


def rows_needed(prompt: int, max_new_tokens: int, slack: int) -> int:
    """Return the rows that a call writes, in whole chunks; prefill writes whole chunks as well."""
    return round_up(prompt + max_new_tokens + slack, prompt_chunk())


def round_up(value: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-value // multiple) * multiple


def power_of_two(value: int) -> int:
    """Return the smallest power of two of at least `value`, which is at least 1."""
    return 1 << (value - 1).bit_length()


def powers_of_two(largest: int) -> tuple[int, ...]:
    """List the powers of two up to `largest`, from 1: buckets where nothing else is known."""
    return tuple(1 << i for i in range(largest.bit_length()))


def run_smallest(
    needed: jax.Array, sizes: Sequence[int], branches: Sequence[Callable[[], Result]]
) -> Result:
    """Run the branch of the smallest of `sizes` that is at least `needed`.

    Inside a loop on a GPU this stays in the round's command buffer.

    Args:
      needed: int32 [], at most the last size.
      sizes: ascending.
      branches: one per size; their results have the same shapes.
    """
    if len(branches) == 1:
        return branches[0]()
    return jax.lax.switch(sum((needed > size).astype(jnp.int32) for size in sizes[:-1]), branches)
