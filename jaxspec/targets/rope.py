"""Compute rotations of rotary position embeddings from their records (`jaxspec.core.rope`)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import LayerConfig
from jaxspec.core.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
)


def rope_table(
    positions: jax.Array, config: LayerConfig, capacity: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Compute cosines and sines, float32 [B, T, 1, r/2], at `positions` int32 [B, T].

    A layer without rotations has cosines of one and sines of zero, for whole heads.

    Args:
      capacity: rows of the cache, by which LongRoPE chooses its factors. transformers changes them
        in the middle of an answer, when it becomes long; rotated keys that are kept allow no change.
    """
    if config.rope is None:
        shape = (*positions.shape, 1, config.head_dim // 2)
        return jnp.ones(shape, jnp.float32), jnp.zeros(shape, jnp.float32)
    frequency = rope_frequency(config.rope, config.head_dim, capacity)
    angles = positions[..., None, None].astype(jnp.float32) * frequency
    magnitude = getattr(config.rope.scaling, "magnitude", 1.0)
    if magnitude == 1.0:
        return jnp.cos(angles), jnp.sin(angles)
    return jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude


def rope_frequency(rope: Rope, head_dim: int, capacity: int = 0) -> np.ndarray:
    """Compute the rotation per position of each pair of components, float32 [r/2].

    It is a constant of the compiled program. Float32 operations come in the same order as for the
    published checkpoints: one unit in the last place moves the angle at position 30,000 by 2e-3.

    Raises:
      ValueError: LongRoPE's factors are not as many as pairs.
    """
    rotated, scaling = rope.count_rotated(head_dim), rope.scaling
    if isinstance(scaling, ProportionalScaling):
        return _proportional(rope.theta, head_dim, scaling)
    powers = _raise(rope.theta, rotated)
    frequency = np.float32(1) / powers
    match scaling:
        case None:
            return frequency
        case LinearScaling(factor):
            return frequency / np.float32(factor)
        case Llama3Scaling():
            return _llama3(frequency, scaling)
        case YarnScaling():
            return _yarn(powers, rope.theta, scaling)
        case LongRopeScaling(short, long, most):
            factors = long if capacity > most else short
            if len(factors) != len(powers):
                raise ValueError(
                    f"config.json: longrope has {len(factors)} factors for {len(powers)} pairs"
                )
            return np.float32(1) / (np.asarray(factors, np.float32) * powers)
    raise TypeError(f"no rotation for {scaling!r}")


def _raise(theta: float, components: int) -> np.ndarray:
    """Raise `theta` to the power of 2i / components, for every pair i, float32."""
    exponent = np.arange(0, components, 2, dtype=np.float32) / np.float32(components)
    return np.float32(theta) ** exponent


def _proportional(theta: float, head_dim: int, scaling: ProportionalScaling) -> np.ndarray:
    moving = int(scaling.share * head_dim // 2)
    frequency = np.float32(1) / _raise(theta, head_dim) / np.float32(scaling.factor)
    return np.where(np.arange(head_dim // 2) < moving, frequency, np.float32(0))


def _llama3(frequency: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Divide slow rotations by `factor`, keep fast ones, interpolate between them (Llama 3.1)."""
    turns = scaling.original_max_positions / (np.float32(2 * np.pi) / frequency)
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0, 1).astype(np.float32)
    return ((1 - smooth) * (frequency / np.float32(scaling.factor)) + smooth * frequency).astype(
        np.float32
    )


def _yarn(powers: np.ndarray, theta: float, scaling: YarnScaling) -> np.ndarray:
    """Mix kept and slowed rotations by a ramp over the pairs (YaRN, section 3.2)."""
    components = 2 * len(powers)

    def pair_with(turns: float) -> float:
        length = scaling.original_max_positions / (turns * 2 * math.pi)
        return components * math.log(length) / (2 * math.log(theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, components - 1)
    span = np.float32(high - low if high != low else 0.001)
    ramp = (np.arange(len(powers), dtype=np.float32) - np.float32(low)) / span
    kept = 1 - np.clip(ramp, 0, 1)
    slowed = np.float32(1) / (np.float32(scaling.factor) * powers)
    return slowed * (1 - kept) + np.float32(1) / powers * kept
