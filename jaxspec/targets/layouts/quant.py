"""Weight-only quantisation of targets: int8 or fp8 values, one float32 scale per output channel.

Values replace the weights under "params". Scales have the same names in the collection "quant". All
projections, the experts' stacks and the output projection are quantised; norms, biases, the router
and an untied embedding table are not. A tied table has a scale per row, which serves both uses: a
looked-up row is multiplied by its scale, a logit by its token's scale.

Drafters are not quantised. Decoding is lossless with respect to the quantised target.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.params import Params
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.targets.layouts.layout import Layout

COLLECTION = "quant"
# Asks for floats, whatever the files hold.
FULL = "none"
# Asks to keep what the files hold in four bits, see `jaxspec.targets.layouts.four_bits`.
INT4, FOUR_BITS = "int4", "four_bits"
# {kind: (dtype, largest magnitude)}. These types have no infinity: a larger number would wrap or
# become NaN.
KINDS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}
_PROJECTIONS = ("kernel", "lm_head", "gate_up", "down")


def quantize_params(params: Params, kind: str) -> Params:
    """Quantise the target of `params`; drafters and spec are shared with the original.

    This can be traced, so `jax.eval_shape` gives the shapes for abstract weights.

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
            f"the target is already quantised to {found}: load it again to quantise it to {kind}"
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


def check_kind(kind: str | None, choices: Iterable[str] = KINDS) -> None:
    """Check that `kind` is one of `choices` or None.

    Raises:
      ValueError: `kind` is anything else.
    """
    if kind is not None and kind not in choices:
        raise ValueError(f"unknown quantisation {kind!r}: {choose_one(kind, choices)}")


def kind_of(variables: Mapping[str, Any]) -> str | None:
    """Return how a target's variables are quantised: `int8`, `fp8`, `int4` or None."""
    if FOUR_BITS in variables:
        return INT4
    if COLLECTION not in variables:
        return None
    values, scales = flatten_dict(variables["params"]), flatten_dict(variables[COLLECTION])
    dtype = values[next(iter(scales))].dtype
    return next(kind for kind, (stored, _) in KINDS.items() if stored == dtype)


def refuse(variables: Mapping[str, Any], what: str) -> None:
    """Refuse quantised variables.

    Args:
      variables: a target's variables.
      what: end of the message: what cannot be done with them.

    Raises:
      ValueError: `variables` are quantised.
    """
    kind = kind_of(variables)
    if kind:
        raise ValueError(f"weights quantised to {kind} cannot be {what}")


def contracted_axis(path: tuple[str, ...], tied: bool) -> int | None:
    """Return the axis of a target's parameter that its product sums over.

    Args:
      path: keys below "params".
      tied: whether the embedding table is also the output projection.

    Returns:
      The axis; every other index has a scale. None for a parameter that is not quantised.
    """
    if path == ("embedding",):
        return -1 if tied else None
    return -2 if path[-1] in _PROJECTIONS else None


@functools.partial(jax.jit, static_argnames=("kind", "axis"))
def quantize(weights: jax.Array, kind: str, axis: int) -> tuple[jax.Array, jax.Array]:
    """Quantise weights along one axis.

    Values are rounded so that `values * scale` is close to the weights. The largest magnitude along
    `axis` becomes the type's largest number.

    Args:
      weights: floats.
      kind: `int8` or `fp8`.
      axis: the axis that the product sums over.

    Returns:
      Values of `kind` in the shape of `weights`, and float32 scales in that shape without `axis`.
    """
    dtype, largest = KINDS[kind]
    weights = weights.astype(jnp.float32)
    peak = jnp.max(jnp.abs(weights), axis=axis, keepdims=True)
    scale = jnp.where(peak > 0, peak / largest, 1.0)
    scaled = jnp.clip(weights / scale, -largest, largest)
    values = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return values.astype(dtype), jnp.squeeze(scale, axis)


def scaled(sums: jax.Array, scale: jax.Array, dtype: Any) -> jax.Array:
    """Scale and round float32 sums over quantised weights."""
    return (sums * scale).astype(dtype)


def multiply_values(x: jax.Array, values: jax.Array, scale: jax.Array, axis: int) -> jax.Array:
    """Multiply `x` [..., in] by quantised values, whose input axis is -2 or -1.

    XLA reads the values as stored and converts them inside the product. Sums stay float32 until
    they are scaled, because unscaled sums exceed float16's range.

    Returns:
      [..., out] in x's dtype.
    """
    inputs = (((x.ndim - 1,), (axis % values.ndim,)), ((), ()))
    values = values.astype(x.dtype)
    sums = jax.lax.dot_general(x, values, inputs, preferred_element_type=jnp.float32)
    return scaled(sums, scale, x.dtype)


def _make_layout(kind: str) -> Layout:
    dtype, _ = KINDS[kind]

    def owns(weights: jax.Array | None, added: jax.Array) -> bool:
        return weights is not None and weights.dtype == dtype

    def arrange(weights: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        return quantize(weights, kind, axis)

    own = kind, COLLECTION, owns, arrange, multiply_values
    return Layout(*own, per_output=True, converts=True)


QUANTISED = {kind: _make_layout(kind) for kind in KINDS}
