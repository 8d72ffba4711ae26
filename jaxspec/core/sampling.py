"""Temperature, top-k, top-p and min-p, and draft-invariant sampling: greedy decoding under known
noise.

At temperature T > 0 the token at position p of sequence s is argmax(process(logits) + G[s, p]),
where G is standard Gumbel noise that depends only on the seed, the sequence and the position. By
the Gumbel-max theorem this is an exact sample, and the text does not depend on the drafter, the
tree or the batch (drafter-invariant coupling: Daliri, Musco, Suresh, arXiv 2408.07978).

B sequences, N tree rows, P positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxspec.core.filters import FEW, find_threshold, find_threshold_of_few, measure_distance
from jaxspec.core.mixed_sampling import process_mixed
from jaxspec.core.split_vocabulary import find_best, is_split

MIN_TEMPERATURE = 1e-5
"""Decoding is greedy below this temperature, as in the reference code of DFlash and EAGLE."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@dataclasses.dataclass(frozen=True)
class SamplingSpec:
    """Static half of the sampling settings: which steps exist in the compiled program.

    Greedy decoding has none.

    Attributes:
      few: top_k is at most `filters.FEW`, so that the best FEW tokens decide both top-k and top-p.
      mixed: every sequence has settings of its own, and `SamplingValues` holds arrays [B]; the
        other fields are not read. See `MIXED`.
    """

    greedy: bool
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    few: bool = False
    mixed: bool = False


MIXED = SamplingSpec(False, mixed=True)
"""Sequences of any settings side by side: a temperature below `MIN_TEMPERATURE` is greedy; a top_k of
0, a top_p of 1 and a min_p of 0 leave the step out."""


class SamplingValues(flax.struct.PyTreeNode):
    """Traced half of the sampling settings: a change recompiles only if it moves top_k across FEW.

    Attributes:
      temperature, top_p, min_p: float32 []; [B] if the spec is `MIXED`.
      top_k: int32 [] or [B].
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array


def make_sampling(
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> tuple[SamplingSpec, SamplingValues]:
    """Check the settings and split them into a static and a traced half.

    Args:
      temperature: >= 0; below 1e-5 is greedy: the other settings are checked but have no effect.
      top_k: >= 1, or None to leave the step out.
      top_p: in (0, 1]; None or 1 leaves the step out.
      min_p: in [0, 1]; None or 0 leaves the step out.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    temperature = _number("temperature", temperature)
    if not 0 <= temperature <= float(jnp.finfo(jnp.float32).max):
        raise ValueError(
            f"temperature must be finite and at least 0 (0 is greedy), got {temperature}"
        )
    try:
        if isinstance(top_k, bool):
            raise TypeError
        k = 1 if top_k is None else operator.index(top_k)
    except TypeError:
        raise ValueError(f"top_k must be an integer or None, got {top_k!r}") from None
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}; None keeps the whole vocabulary")
    p = 1.0 if top_p is None else _number("top_p", top_p)
    if not 0 < p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {p}; None keeps the whole vocabulary")
    floor = 0.0 if min_p is None else _number("min_p", min_p)
    if not 0 <= floor <= 1:
        raise ValueError(f"min_p must be in [0, 1], got {floor}; None keeps the whole vocabulary")
    greedy = temperature < MIN_TEMPERATURE
    spec = SamplingSpec(greedy)
    if not greedy:
        limited = top_k is not None
        spec = SamplingSpec(greedy, limited, p < 1, floor > 0, limited and k <= FEW)
    # NumPy's scalars: each of JAX's would be made by a small program.
    values: Any = (
        np.float32(temperature),
        np.int32(min(k, 2**31 - 1)),
        np.float32(p),
        np.float32(floor),
    )
    return spec, SamplingValues(*values)


def _number(name: str, value: float) -> float:
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def process(logits: jax.Array, spec: SamplingSpec, values: SamplingValues) -> jax.Array:
    """Return the logits of the distribution to sample from.

    Apply temperature, then top-k, top-p and min-p, as transformers' warpers do. Each step sees the
    distribution that the previous one left. The thresholds are exact; all tokens tied with a
    threshold are kept (transformers keeps ties in top-k and min-p, but cuts through them by index
    in top-p).

    Args:
      logits: [..., V], any float dtype. NaN counts as -inf.
      spec, values: from `make_sampling`; or `MIXED` and values [B] for logits [B, ..., V], or values
        of the shape of the logits without V.

    Returns:
      float32 [..., V], shifted so that the largest is 0; -inf where excluded. Greedy decoding gets
      the logits unchanged, in float32.
    """
    if spec.greedy:
        return logits.astype(jnp.float32)
    if spec.mixed:
        return _process_mixed(logits.astype(jnp.float32), values)
    distance = measure_distance(logits.astype(jnp.float32), values.temperature)
    if spec.few:
        top_p = values.top_p if spec.top_p else None
        distance = _cut(distance, find_threshold_of_few(distance, values.top_k, top_p))
    else:
        if spec.top_k:
            counted = jnp.isfinite(distance).astype(jnp.float32)
            limit = values.top_k.astype(jnp.float32)
            distance = _cut(distance, find_threshold(distance, counted, limit))
        if spec.top_p:
            weight = jnp.exp(-distance)
            limit = values.top_p * weight.sum(-1)
            distance = _cut(distance, find_threshold(distance, weight, limit))
    if spec.min_p:
        distance = jnp.where(distance <= -jnp.log(values.min_p), distance, jnp.inf)
    return -distance


def _process_mixed(logits: jax.Array, values: SamplingValues) -> jax.Array:
    """Process logits [B, ..., V] by settings of each sequence."""
    shape = logits.shape[:-1]
    rows = [
        jnp.broadcast_to(x.reshape(x.shape + (1,) * (len(shape) - x.ndim)), shape)
        for x in (values.temperature, values.top_k, values.top_p, values.min_p)
    ]
    return process_mixed(logits, rows[0] < MIN_TEMPERATURE, tuple(rows))


def _cut(distance, threshold):
    """Exclude entries of `distance` [..., V] beyond `threshold` [...]."""
    return jnp.where(distance <= threshold[..., None], distance, jnp.inf)


def sequence_keys(seed: int | jax.Array, sequence: jax.Array | np.ndarray) -> jax.Array:
    """Make one threefry key per sequence.

    Args:
      seed: integer [], or [B] for sequences with seeds of their own.
      sequence: uint32 [B].

    Returns:
      keys [B]: `fold_in(key(seed), s)` for each s of `sequence`.
    """
    make = functools.partial(jax.random.key, impl="threefry2x32")
    keys = jax.vmap(make)(seed) if jnp.ndim(seed) else make(seed)
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


def draw(
    logits: jax.Array,
    noise: jax.Array | None,
    depth: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
) -> jax.Array:
    """Choose the target's own token after each tree row: argmax(process(logits) + noise).

    The lower id wins ties.

    Args:
      logits: [B, N, V].
      noise: float32 [B, P, V]; slot d belongs to the token that follows a row of depth d. None for
        greedy decoding.
      depth: int32 [B, N], at most P - 1.

    Returns:
      int32 [B, N].
    """
    if spec.greedy:
        return argmax(logits)
    slots = jax.vmap(lambda sequence, rows: sequence[rows])(noise, depth)
    return argmax(process(logits, spec, values) + slots)


def draw_rows(
    logits: jax.Array,
    noise: jax.Array,
    sequence: jax.Array,
    depth: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
) -> jax.Array:
    """Draw as `draw` does after R rows of several sequences.

    Args:
      logits: [R, V].
      noise: float32 [B, P, V] of all sequences.
      sequence: int32 [R], whose each row is.
      depth: int32 [R].
      spec: `MIXED`.
      values: [B].

    Returns:
      int32 [R].
    """
    rows = jax.tree.map(lambda x: x[sequence], values)
    # Rows of noise are large. Greedy sequences have none.
    samples = rows.temperature >= MIN_TEMPERATURE

    def sample() -> jax.Array:
        return argmax(process(logits, spec, rows) + noise[sequence, depth])

    return lax.cond(samples.any(), sample, lambda: argmax(logits.astype(jnp.float32)))


def argmax(scores: jax.Array) -> jax.Array:
    """Return the index int32 [...] of the largest of `scores` [..., V], the lowest among equals.

    NaN counts as -inf. The two reductions are vectorised and several times faster on a CPU than
    `jnp.argmax`, which reduces over pairs without vectorising.
    """
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    if is_split(scores):
        return find_best(scores, 1, _find_largest)[1][..., 0]
    return _find_first(scores)


def _find_first(scores: jax.Array) -> jax.Array:
    """Find the first index of the largest of `scores` [..., V] without NaN."""
    index = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    return jnp.where(scores == scores.max(-1, keepdims=True), index, scores.shape[-1]).min(-1)


def _find_largest(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Find the largest of `scores` [..., V] without NaN, and its first index; both [..., k = 1]."""
    return scores.max(-1, keepdims=True), _find_first(scores)[..., None]
