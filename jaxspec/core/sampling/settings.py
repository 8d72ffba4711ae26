"""Settings of sampling: what is compiled in, and what is traced.

B sequences.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.sampling.filters import FEW

MIN_TEMPERATURE = 1e-5
"""Decoding is greedy below this temperature, as in the reference code of DFlash and EAGLE."""

MOST_PENALTY = 2.0
"""Largest presence and frequency penalty, and the lowest without its sign: OpenAI's limit."""


@dataclasses.dataclass(frozen=True)
class SamplingSpec:
    """Static half of the sampling settings: which steps exist in the compiled program.

    Greedy decoding has none but the penalties.

    Attributes:
      penalties: logits are penalised before all else, see `jaxspec.core.sampling.penalties`.
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
    penalties: bool = False


MIXED = SamplingSpec(False, mixed=True)
"""Sequences of any settings side by side: a temperature below `MIN_TEMPERATURE` is greedy; a top_k of
0, a top_p of 1 and a min_p of 0 leave the step out."""


class Penalties(NamedTuple):
    """What makes tokens less likely that the text already has; see
    `jaxspec.core.sampling.penalties.penalise`.

    Attributes:
      presence, frequency, repetition: float32 [] or [B]; 0, 0 and 1 do nothing.
    """

    presence: jax.Array
    frequency: jax.Array
    repetition: jax.Array

    @property
    def some(self) -> jax.Array:
        """Whether they do anything, bool [] or [B]."""
        return (self.presence != 0) | (self.frequency != 0) | (self.repetition != 1)


class SamplingValues(flax.struct.PyTreeNode):
    """Traced half of the sampling settings: a change recompiles only if it moves top_k across FEW.

    Attributes:
      temperature, top_p, min_p: float32 []; [B] if the spec is `MIXED`.
      top_k: int32 [] or [B].
      penalties: None without any.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    penalties: Penalties | None = None


def make_sampling(
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> tuple[SamplingSpec, SamplingValues]:
    """Check the settings and split them into a static and a traced half.

    Args:
      temperature: >= 0; below 1e-5 is greedy: the filters are checked but have no effect.
      top_k: >= 1, or None to leave the step out.
      top_p: in (0, 1]; None or 1 leaves the step out.
      min_p: in [0, 1]; None or 0 leaves the step out.
      presence_penalty, frequency_penalty: in [-2, 2]; 0 does nothing.
      repetition_penalty: above 0; 1 does nothing.

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
    penalties = _make_penalties(presence_penalty, frequency_penalty, repetition_penalty)
    spec = SamplingSpec(temperature < MIN_TEMPERATURE, penalties=penalties is not None)
    if not spec.greedy:
        limited = top_k is not None
        steps = {"top_k": limited, "top_p": p < 1, "min_p": floor > 0}
        spec = dataclasses.replace(spec, **steps, few=limited and k <= FEW)
    # NumPy's scalars: each of JAX's would be made by a small program.
    values: Any = (
        np.float32(temperature),
        np.int32(min(k, 2**31 - 1)),
        np.float32(p),
        np.float32(floor),
    )
    return spec, SamplingValues(*values, penalties=penalties)


def _make_penalties(presence: float, frequency: float, repetition: float) -> Penalties | None:
    """Check penalties; None if they do nothing."""
    named = {"presence_penalty": presence, "frequency_penalty": frequency}
    subtracted = [_number(name, value) for name, value in named.items()]
    for name, value in zip(named, subtracted, strict=True):
        if not abs(value) <= MOST_PENALTY:
            limits = f"-{MOST_PENALTY:g} to {MOST_PENALTY:g}"
            raise ValueError(f"{name} must be from {limits} (0 does nothing), got {value}")
    scale = _number("repetition_penalty", repetition)
    if not 0 < scale < math.inf:
        raise ValueError(
            f"repetition_penalty must be finite and above 0 (1 does nothing), got {scale}"
        )
    limits = np.finfo(np.float32)
    scale = min(max(scale, float(limits.tiny)), float(limits.max))
    values: Any = [np.float32(value) for value in (*subtracted, scale)]
    return Penalties(*values) if Penalties(*values).some else None


def _number(name: str, value: float) -> float:
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
