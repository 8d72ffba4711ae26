"""Settings of the slots: one array that the host writes and every visit reads.

A row of int32 per slot keeps the copy to the device a single small one. Floats are stored by bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.sampling.settings import Penalties, SamplingValues
from jaxspec.core.state import Request
from jaxspec.serve.bias import BIASES, LogitBias

STOPS = 16
"""Stop ids that a request may have, the model's EOS tokens included."""

_INTEGERS = (
    *("active", "reader", "limit", "stop_from", "seed", "sequence", "deepest", "top_k"),
    *("low", "high"),
)
_FLOATS = ("temperature", "top_p", "min_p", "weight", *Penalties._fields)
_NAMES = _INTEGERS + _FLOATS
# Behind these come the stop ids, the tokens that have a bias, and their biases.
_BIASED = len(_NAMES) + STOPS
_COLUMNS = _BIASED + 2 * BIASES


class SlotSettings(NamedTuple):
    """Settings on the device.

    Attributes:
      active: bool [B], slots that decode.
      reader: int32 [B], number of the drafter that reads the slot's tokens, so that it can draft
        for them: 1 is the first; 0: none.
      follows: bool [B], slots that some drafter reads.
      request: limits, stop ids, seeds and sampling of all slots.
      weight: float32 [B], what an expected token of each slot counts when rows are shared.
      low, high: int32 [B], least and most rows of each slot.
      bias: what each slot adds to logits.
    """

    active: jax.Array
    reader: jax.Array
    follows: jax.Array
    request: Request
    weight: jax.Array
    low: jax.Array
    high: jax.Array
    bias: LogitBias


def make_settings(slots: int) -> np.ndarray:
    """Make settings int32 [B, columns] of free slots."""
    settings = np.zeros((slots, _COLUMNS), np.int32)
    for slot in range(slots):
        write_settings(settings, slot, stop=())
    return settings


def write_settings(
    settings: np.ndarray,
    slot: int,
    *,
    stop: tuple[int, ...],
    bias: tuple[tuple[int, float], ...] = (),
    **values: Any,
) -> None:
    """Write the settings of a slot in place; those that are not given get neutral values.

    Args:
      stop: at most `STOPS` token ids.
      bias: at most `BIASES` pairs of a token id and its bias.
      values: by the names of columns: `active`, `limit`, `temperature`, …
    """
    neutral: dict[str, Any] = {"low": 1, "high": 1, "top_p": 1.0, "weight": 1.0, "repetition": 1.0}
    for column, name in enumerate(_NAMES):
        value = values.get(name, neutral.get(name, 0))
        if name in _FLOATS:
            settings[slot, column] = np.float32(value).view(np.int32)
        else:
            settings[slot, column] = np.asarray(value, np.int64).astype(np.int32)
    settings[slot, len(_NAMES) :] = -1
    settings[slot, len(_NAMES) : len(_NAMES) + len(stop)] = stop
    for place, (token, value) in enumerate(bias):
        settings[slot, _BIASED + place] = token
        settings[slot, _BIASED + BIASES + place] = np.float32(value).view(np.int32)


def set_column(settings: np.ndarray, slot: int, name: str, value: int) -> None:
    """Change one integer of a slot in place."""
    settings[slot, _INTEGERS.index(name)] = value


def read_settings(settings: jax.Array) -> SlotSettings:
    """Read settings int32 [B, columns] on the device."""
    column: dict[str, jax.Array] = {name: settings[:, i] for i, name in enumerate(_NAMES)}
    for name in _FLOATS:
        column[name] = jax.lax.bitcast_convert_type(column[name], jnp.float32)
    penalties = Penalties(*(column[name] for name in Penalties._fields))
    sampling = SamplingValues(
        column["temperature"], column["top_k"], column["top_p"], column["min_p"], penalties
    )
    request = Request(
        limit=column["limit"],
        stop=settings[:, len(_NAMES) : _BIASED],
        seed=column["seed"],
        sequence=jax.lax.bitcast_convert_type(column["sequence"], jnp.uint32),
        sampling=sampling,
        stop_from=column["stop_from"],
        deepest=column["deepest"],
    )
    biased, biases = jnp.split(settings[:, _BIASED:], 2, axis=1)
    bias = LogitBias(biased, jax.lax.bitcast_convert_type(biases, jnp.float32))
    active, reader = column["active"] != 0, column["reader"]
    shared = column["weight"], column["low"], column["high"]
    return SlotSettings(active, reader, reader != 0, request, *shared, bias)
