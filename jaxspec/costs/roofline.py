"""Costs from the roofline: a target's forward pass at the peak rates of a device.

The counts of operations and bytes are those of BASTION (Oh, Cao et al. 2026, arXiv 2605.29727,
appendix; equal to its released code to the integer): they read the whole embedding table, write
attention scores to memory, and cover dense models only. `jaxspec.bench.latency.floors` counts the
least that a forward pass must move, with fused attention, tied embeddings and sparse layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxspec.core.config import TargetConfig
from jaxspec.core.recurrent import refuse_recurrent
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import RoundCosts, make_costs


class PeakRates(NamedTuple):
    """Peak rates of a device.

    Attributes:
      flops: dense bfloat16 operations per second, a multiply and an add counted as two.
      bandwidth: bytes per second of its memory.
    """

    flops: float
    bandwidth: float


# The values of BASTION's code, from data sheets.
DEVICES = {
    "a5000": PeakRates(111e12, 768e9),
    "a6000": PeakRates(155e12, 768e9),
    "a100": PeakRates(312e12, 1935e9),
    "h100": PeakRates(989e12, 3350e9),
    "h200": PeakRates(989e12, 4800e9),
    "rtx-pro-6000": PeakRates(504e12, 1792e9),
}


def paper_flops(config: TargetConfig, new: ArrayLike, cached: ArrayLike) -> ArrayLike:
    """Count the operations of a forward pass of `new` tokens over `cached` tokens.

    Both are integers, or integer arrays that broadcast.
    """
    s, e, total = new, config.hidden_size, 2 * new * config.hidden_size * config.vocab_size
    for c in config.list_layers():
        heads = c.num_heads * (c.head_dim + c.value_dim)
        products = 2 * s * e * (c.num_heads * c.value_dim + sum(c.count_columns()))
        total = total + products + 2 * s * (cached + s) * heads + 6 * s * e * c.ffn_size
    return total


def paper_bytes(
    config: TargetConfig, new: ArrayLike, cached: ArrayLike, itemsize: int = 2
) -> ArrayLike:
    """Count the bytes that the same pass moves by the paper's formula, `itemsize` per number."""
    s, e, v = new, config.hidden_size, config.vocab_size
    total = 2 * v * e + s * (e + v)
    for c in config.list_layers():
        heads, kv = (n * (c.head_dim + c.value_dim) for n in (c.num_heads, c.num_kv_heads))
        products = c.num_heads * c.value_dim + sum(c.count_columns())
        weights = e * products + 3 * e * c.ffn_size
        activations = 2 * s * (2 * e + heads + 2 * c.ffn_size) + 2 * c.num_heads * s * (cached + s)
        total = total + weights + kv * (cached + 2 * s) + activations
    return itemsize * total


def check_dense(config: TargetConfig) -> None:
    """Raise a ValueError if the counts do not cover a target."""
    refuse_recurrent(
        config, "be counted by the roofline: measure it with `jaxspec calibrate` alone"
    )
    if config.moe is not None:
        raise ValueError(
            "the roofline counts dense targets only, and this one has experts: measure its rounds "
            "with `jaxspec calibrate` alone"
        )


def roofline_costs(
    config: TargetConfig,
    device: PeakRates,
    widths: Sequence[int],
    contexts: Sequence[int],
    *,
    draft: ArrayLike = 0.0,
    itemsize: int = 2,
    fit: RooflineFit | None = None,
) -> RoundCosts:
    """Compute round costs from a device's peak rates, as BASTION does, instead of measuring them.

    They are given for every number of rows, and so is their cost of one row more. Both branches of
    the roofline are polynomials of the rows with coefficients of at least 0, so the costs are
    convex, as proposition 2.4 needs: the first size after which the expected tokens per second
    decrease is the best one.

    Args:
      config: of the target.
      device: peak rates.
      widths: rows that verification is compiled for, ascending from 1.
      contexts: cached tokens, ascending.
      draft: seconds of drafting, one number or one per context.
      itemsize: bytes of a weight.
      fit: correction of the roofline's times by measured ones, see `roofline_fit.fit_roofline`;
        None takes the bare roofline.

    Raises:
      ValueError: the target is sparse, or see `make_costs`.
    """
    check_dense(config)
    rows = range(1, widths[-1] + 1)
    new, cached = np.array(rows)[:, None], np.array(contexts)[None]
    compute = np.asarray(paper_flops(config, new, cached)) / device.flops
    memory = np.asarray(paper_bytes(config, new, cached, itemsize)) / device.bandwidth
    seconds = (fit or RooflineFit()).seconds(compute, memory)
    return make_costs(rows, contexts, draft, seconds, compiled=widths)


def double_contexts(contexts: Sequence[float], most: int) -> np.ndarray:
    """Add contexts to evaluate a roofline at, int64: the first one doubled and doubled up to `most`.

    Costs are linear between the contexts of a table and constant beyond the last.
    """
    first = int(contexts[0])
    doubled = [first << i for i in range(max(most // first, 1).bit_length())]
    return np.unique([*contexts, *doubled, max(most, first)]).astype(np.int64)
