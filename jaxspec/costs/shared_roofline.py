"""Costs of rounds on devices that share a target, from peak rates and the collectives of a round.

Each device reads its share of the weights and of the cache, and the devices add up two results per
layer (`jaxspec.targets.sharding`). Large products and long reads reach `COMPUTE` and `MEMORY` of a
device's peak rates. These shares, the time of a kernel's launch and the link are assumptions, close
to what is measured on an H100 with NVLink; nothing here was timed on several devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.costs.roofline import PeakRates
from jaxspec.costs.round_costs import RoundCosts, make_costs

COMPUTE, MEMORY = 0.7, 0.85
# Kernels of a dense and of a sparse layer, and seconds that the next one starts after the last.
KERNELS, SPARSE_KERNELS, LAUNCH = 17, 20, 1.6e-6

# Fewest rows per device for which experts are split whole: fewer leave too much to chance.
EXPERT_ROWS = 64


class Link(NamedTuple):
    """How fast devices add up an array that each has a part of.

    Attributes:
      latency: seconds of the smallest.
      bandwidth: bytes per second beyond that.
    """

    latency: float
    bandwidth: float


NVLINK = Link(12e-6, 350e9)


class Weights(NamedTuple):
    """Bytes of weights.

    Attributes:
      held: that a device holds.
      read: of them, that every forward pass reads; a few embedding rows do not count.
      experts: of them, that it reads if its tokens use all experts.
      multiplied: weights on all devices that a token is multiplied by, as a number of weights.
    """

    held: float
    read: float
    experts: float
    multiplied: float


def count_weights(config: TargetConfig, devices: int, itemsize: float = 2) -> Weights:
    """Count the weights of a target that devices share.

    Every device holds the embedding table. Norms are left out.

    Args:
      devices: number of them; one that `jaxspec.targets.sharding.shares.list_counts` lists.
      itemsize: bytes of a weight.
    """
    c, width = config, config.hidden_size
    # Each device has at least one kv head.
    attention = width * sum(
        (layer.head_dim + layer.value_dim) * (layer.num_heads + max(layer.num_kv_heads, devices))
        for layer in c.list_layers()
    )
    sparse = c.count_sparse()
    dense = 3 * width * sum(layer.ffn_size for layer in c.list_layers() if layer.has_dense())
    table = c.vocab_size * width
    shared = attention + dense + table
    experts = routers = used = 0.0
    if c.moe is not None:
        expert = 3 * width * c.moe.expert_ffn_size * sparse
        routers = width * c.moe.num_experts * sparse
        experts, used = expert * c.moe.num_experts, expert * c.moe.experts_per_token
    copies = table if devices > 1 or not c.tie_embeddings else 0
    return Weights(
        held=itemsize * ((shared + experts) / devices + routers + copies),
        read=itemsize * (shared / devices + routers),
        experts=itemsize * experts / devices,
        multiplied=shared + routers + used,
    )


def count_cache(config: TargetConfig, devices: int, tokens: int, itemsize: int = 2) -> float:
    """Count the bytes of keys and values of `tokens` tokens that a device holds."""
    numbers = 0.0
    for group in config.list_cache_groups():
        own = group._replace(kv_heads=max(group.kv_heads, devices) // devices)
        numbers += len(group.layers) * own.count_numbers()
    return numbers * tokens * (1 if config.cache_dtype else itemsize)


def sum_seconds(config: TargetConfig, devices: int, rows: int, link: Link = NVLINK) -> float:
    """Compute the seconds of a round's sums over the devices: two of [rows, E] in 16 bits a layer."""
    if devices == 1:
        return 0.0
    each = link.latency + 2 * rows * config.hidden_size / link.bandwidth
    return 2 * config.num_layers * each


def forward_seconds(
    config: TargetConfig,
    device: PeakRates,
    devices: int,
    *,
    batch: int,
    rows: float,
    context: int,
    itemsize: float = 2,
    link: Link = NVLINK,
) -> float:
    """Compute the seconds of a forward pass of `rows` rows per sequence over `context` tokens.

    Packed rows have a mean per sequence, which need not be an integer.
    """
    weights, total = count_weights(config, devices, itemsize), round(batch * rows)
    moved = weights.read + count_cache(config, devices, batch * context)
    if config.moe is not None:
        moved += weights.experts * expect_experts(config.moe, total) / config.moe.num_experts
    wide = sum(c.num_heads * (c.head_dim + c.value_dim) for c in config.list_layers())
    scores = 2 * wide * total * context
    flops = (2 * weights.multiplied * total + scores) / devices
    busy = max(moved / (MEMORY * device.bandwidth), flops / (COMPUTE * device.flops))
    kernels = KERNELS if config.moe is None else SPARSE_KERNELS
    launches = config.num_layers * kernels * LAUNCH
    return busy + launches + sum_seconds(config, devices, total, link)


def shared_costs(
    config: TargetConfig,
    device: PeakRates,
    devices: int,
    widths: Sequence[int],
    contexts: Sequence[int],
    *,
    batch: int = 1,
    draft: float = 0.0,
    itemsize: float = 2,
    link: Link = NVLINK,
) -> RoundCosts:
    """Compute the round costs that policies read, see `forward_seconds`.

    Args:
      config: of the target.
      device: peak rates of each device.
      devices: number of devices that share the target.
      widths: rows of a sequence's verification, ascending from 1.
      contexts: cached tokens of a sequence, ascending.
      batch: number of sequences.
      draft: seconds of drafting.
      itemsize: bytes of a weight.
      link: between the devices.

    Raises:
      ValueError: see `make_costs`.
    """
    verify = [
        [
            forward_seconds(
                config,
                device,
                devices,
                batch=batch,
                rows=rows,
                context=context,
                itemsize=itemsize,
                link=link,
            )
            for context in contexts
        ]
        for rows in widths
    ]
    return make_costs(widths, contexts, draft, verify)


def expect_experts(moe: MoEConfig, tokens: int) -> float:
    """Return the expected number of experts that `tokens` tokens use if each chooses uniformly."""
    return moe.num_experts * (1 - (1 - moe.experts_per_token / moe.num_experts) ** tokens)


def expect_busiest(moe: MoEConfig, tokens: int, devices: int) -> float:
    """Return how many experts the busiest of the devices is expected to use, of those it holds
    whole.

    Each expert is used or not independently of the others, as often as `expect_experts` says.
    """
    own, used = moe.num_experts // devices, expect_experts(moe, tokens) / moe.num_experts
    below = busiest = 0.0
    for count in range(own):
        below += math.comb(own, count) * used**count * (1 - used) ** (own - count)
        busiest += 1 - min(below, 1.0) ** devices
    return busiest


def choose_experts_split(
    config: TargetConfig, devices: int, rows: int, itemsize: float = 2
) -> str | None:
    """Choose how devices share experts: by `channel` or whole, by `expert`; None if they have none.

    The choice is the one that moves fewer bytes on the busiest device. By channel, all devices read
    as many weights, but each moves a row of [E] for every expert of every token three times: in,
    out and into the sum. By expert, one device reads more weights than the mean, and moves rows in
    and out for its own experts alone.

    Args:
      config: of the target.
      devices: number of them.
      rows: of a forward pass, of all sequences together.
      itemsize: bytes of a weight.
    """
    moe = config.moe
    if moe is None or devices == 1:
        return None
    if moe.num_experts % devices or rows < EXPERT_ROWS * devices:
        return "channel"
    expert = 3 * config.hidden_size * moe.expert_ffn_size * itemsize
    # Rows travel in bfloat16, whatever the experts' dtype is.
    row = 2 * config.hidden_size * rows * moe.experts_per_token
    by_channel = expect_experts(moe, rows) / devices * expert + 3 * row
    by_expert = expect_busiest(moe, rows, devices) * expert + (1 + 2 / devices) * row
    return "expert" if by_expert < by_channel else "channel"
