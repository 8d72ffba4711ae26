"""What a forward of the target must compute and move, and the time that a device's peak rates allow
for it.

The counts are those of BASTION (Zheng et al. 2026, appendix; equal to its released code to the
integer): they read the whole embedding table, write attention scores to memory, and know dense
models alone. What a forward must at least move, with fused attention, tied embeddings and sparse
layers, is counted by `jaxspec.bench.latency.floors`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxspec.core.config import TargetConfig


class Device(NamedTuple):
    """Peak rates of a device.

    Attributes:
      flops: dense bfloat16 operations per second, a multiply and an add counted as two.
      bandwidth: bytes per second of its memory.
    """

    flops: float
    bandwidth: float


# As BASTION's code has them (data sheets).
DEVICES = {
    "a5000": Device(111e12, 768e9),
    "a6000": Device(155e12, 768e9),
    "a100": Device(312e12, 1935e9),
    "h100": Device(989e12, 3350e9),
    "h200": Device(989e12, 4800e9),
    "rtx-pro-6000": Device(504e12, 1792e9),
}


def paper_flops(config: TargetConfig, new, cached):
    """Operations of a forward of `new` tokens over `cached` ones; integers, or integer arrays that
    broadcast.
    """
    c, s = config, new
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    e, f = c.hidden_size, c.ffn_size
    layer = 4 * s * e * heads + 4 * s * e * kv + 4 * s * (cached + s) * heads + 6 * s * e * f
    return c.num_layers * layer + 2 * s * e * c.vocab_size


def paper_bytes(config: TargetConfig, new, cached, itemsize: int = 2):
    """Bytes that the same forward moves, by the paper's formula; numbers of `itemsize` bytes."""
    c, s = config, new
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    e, f, v = c.hidden_size, c.ffn_size, c.vocab_size
    weights = 2 * e * (heads + kv) + 3 * e * f
    activations = 4 * s * (e + heads + f) + 2 * c.num_heads * s * (cached + s)
    layer = weights + 2 * kv * (cached + 2 * s) + activations
    return itemsize * (2 * v * e + s * (e + v) + c.num_layers * layer)


def roofline_seconds(flops, moved, device: Device):
    """The larger of the times that the operations and the bytes take at the device's rates;
    seconds, as a NumPy array.
    """
    return np.maximum(np.asarray(flops) / device.flops, np.asarray(moved) / device.bandwidth)
