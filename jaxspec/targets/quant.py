"""Weight-only quantisation of targets: int8 or fp8 values with a float32 scale per output channel.

Values replace the weights under "params"; their scales stand under the same names in the collection
"quant", where the layers look for them (`jaxspec.targets.layers`). Quantised are all projections,
the experts' stacks and the output projection; norms, biases, the router and an embedding table of
its own stay. A tied table has a scale per row, which serves both of its uses: a looked-up row times
its scale, a logit times its token's scale.

Drafters stay as they are. Decoding is lossless with respect to the quantised target.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.params import Params

COLLECTION = "quant"
# {kind: (dtype, largest magnitude)}. The types have no infinity to saturate at: a larger number
# would wrap or become NaN.
KINDS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}
_PROJECTIONS = ("kernel", "lm_head", "gate_up", "down")


def quantize_params(params: Params, kind: str) -> Params:
    """`params` with a quantised target; drafters and spec are shared with the original.

    Can be traced, so that `jax.eval_shape` gives the shapes for abstract weights.

    Args:
      params: from `jaxspec.load`.
      kind: `int8` or `fp8` (float8_e4m3fn).

    Raises:
      ValueError: unknown kind, or the target is quantised already.
    """
    check_kind(kind)
    found = kind_of(params.target)
    if found:
        raise ValueError(
            f"the target is quantised to {found} already: load it again to quantise it otherwise"
        )
    tied, values, scales = params.spec.target.tie_embeddings, {}, {}
    for path, weights in flatten_dict(params.target["params"]).items():
        axis = contracted_axis(path, tied)
        values[path] = weights
        if axis is not None:
            values[path], scales[path] = quantize(weights, kind, axis)
    return params.replace(
        target={"params": unflatten_dict(values), COLLECTION: unflatten_dict(scales)}
    )


def check_kind(kind: str | None) -> None:
    """Raise ValueError unless `kind` is one of `KINDS` or None."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown quantisation {kind!r}: choose one of {', '.join(KINDS)}")


def kind_of(variables: Mapping[str, Any]) -> str | None:
    """How a target's variables are quantised: `int8`, `fp8` or None."""
    if COLLECTION not in variables:
        return None
    values, scales = flatten_dict(variables["params"]), flatten_dict(variables[COLLECTION])
    dtype = values[next(iter(scales))].dtype
    return next(kind for kind, (stored, _) in KINDS.items() if stored == dtype)


def refuse(variables: Mapping[str, Any], what: str) -> None:
    """Raise ValueError, ending in what cannot be done, where `variables` are quantised."""
    kind = kind_of(variables)
    if kind:
        raise ValueError(f"weights quantised to {kind} cannot be {what}")


def contracted_axis(path: tuple[str, ...], tied: bool) -> int | None:
    """The axis of a target's parameter that its product sums over, each of the others having a
    scale; None if it stays.

    Args:
      path: keys below "params".
      tied: the embedding table is also the output projection.
    """
    if path == ("embedding",):
        return -1 if tied else None
    return -2 if path[-1] in _PROJECTIONS else None


@functools.partial(jax.jit, static_argnames=("kind", "axis"))
def quantize(weights: jax.Array, kind: str, axis: int) -> tuple[jax.Array, jax.Array]:
    """Values of `kind` in the shape of `weights`, and their scales, float32 in that shape less
    `axis`.

    `values * scale` is nearest to the weights: the largest magnitude along `axis` becomes the
    type's largest number.
    """
    dtype, largest = KINDS[kind]
    weights = weights.astype(jnp.float32)
    peak = jnp.max(jnp.abs(weights), axis=axis, keepdims=True)
    scale = jnp.where(peak > 0, peak / largest, 1.0)
    scaled = jnp.clip(weights / scale, -largest, largest)
    values = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return values.astype(dtype), jnp.squeeze(scale, axis)
