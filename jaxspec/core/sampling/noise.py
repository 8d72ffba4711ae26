"""Noise of sampling: a function of seed, sequence and position alone.

B sequences, P positions, V vocabulary.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def sequence_keys(seed: int | jax.Array, sequence: jax.Array | np.ndarray) -> jax.Array:
    """Make one threefry key per sequence.

    Args:
      seed: integer [], or [B] for sequences with seeds of their own.
      sequence: uint32 [B].

    Returns:
      keys [B]: `fold_in(key(seed), s)` for each s of `sequence`.
    """
    # jax.random.key would add the user's jax_random_seed_offset.
    whole = np.int64(seed) if isinstance(seed, int) else seed
    low = jnp.asarray(whole).astype(jnp.uint32)
    words = jnp.stack([jnp.zeros_like(low), low], axis=-1)
    keys = jax.random.wrap_key_data(words, impl="threefry2x32")
    return fold_in(keys, jnp.asarray(sequence, jnp.uint32))


def fold_in(keys: jax.Array, data: jax.Array) -> jax.Array:
    """Apply `jax.random.fold_in` elementwise to `keys` and integers `data`, which broadcast."""
    keys, data = jnp.broadcast_arrays(keys, data)
    folded = jax.vmap(jax.random.fold_in)(keys.reshape(-1), data.reshape(-1))
    return folded.reshape(keys.shape)


def gumbel(keys: jax.Array, positions: jax.Array, vocab: int) -> jax.Array:
    """Draw standard Gumbel noise float32 [B, P, V] for the tokens AT `positions` int32 [B, P].

    Positions are absolute. The noise is a function of (key, position, token id): the batch, other
    positions and a longer vocabulary change nothing.
    """
    # This makes an exponential variate from a small uniform one. log1p keeps full relative
    # precision in the tail that decides argmax, down to probabilities of 2^-32; -log(u) with u near
    # 1 would stop at 2^-24.
    bits = random_bits(fold_in(keys[:, None], positions), vocab)
    uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))


def uniform(keys: jax.Array, count: int) -> jax.Array:
    """Draw uniform float32 [..., count] in [0, 1) from `keys` [...].

    Entry i does not depend on `count`.
    """
    return (random_bits(keys, count) >> 8).astype(jnp.float32) * 2.0**-24


def random_bits(keys: jax.Array, count: int) -> jax.Array:
    """Draw uint32 [..., count] from threefry `keys` [...]; entry i depends only on the key and i.

    These are the bits of `jax.random.bits` under `jax_threefry_partitionable`, whether or not that
    flag is set. The code fuses with whatever reads the bits, which is several times faster on a
    CPU, where JAX loops over the rounds.
    """
    key = jax.random.key_data(keys)[..., None, :]
    index = lax.broadcasted_iota(jnp.uint32, (*keys.shape, count), keys.ndim)
    high, low = _threefry(key[..., 0], key[..., 1], jnp.zeros_like(index), index)
    return high ^ low


@functools.partial(jax.jit, inline=True)
def _threefry(key0, key1, x0, x1):
    """Compute Threefry-2x32 with 20 rounds (Salmon et al., 2011)."""
    schedule = (key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << rotation) | (x1 >> (32 - rotation)))
        x0, x1 = x0 + schedule[(i + 1) % 3], x1 + schedule[(i + 2) % 3] + jnp.uint32(i + 1)
    return x0, x1
