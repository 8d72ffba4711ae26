"""What each of several devices holds of a target.

Queries, keys and values are shared by kv head; gate and up projections, and those of every expert,
by feed-forward channel; the projections that follow them by their inputs; the output projection by
token. All else is small, and every device has it. Experts can be shared whole instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.core.config import LayerConfig, MoEConfig, TargetConfig
from jaxspec.core.mesh import MODEL
from jaxspec.core.recurrent import refuse_recurrent
from jaxspec.core.runtime.near_miss import choose_one

EXPERTS = ("channel", "expert")
"""How devices share experts: each holds some channels of all, or all channels of some."""


class Split(NamedTuple):
    """How devices share one array of weights.

    Attributes:
      axis: the axis that is split, from the last (-1) on; None: every device holds the array.
      order: int [devices, N], where along the last axis of the whole array the entries of each
        device come from; -1 is a zero. The array then has an axis of devices before its last, so
        that nothing takes it for one of a single device. None: entries keep their order.
    """

    axis: int | None = None
    order: np.ndarray | None = None

    def spec(self, ndim: int) -> PartitionSpec:
        """Return the sharding of an array that has `ndim` axes as the devices hold it."""
        if self.axis is None:
            return PartitionSpec()
        axis = ndim + self.axis - (self.order is not None)
        return PartitionSpec(*(None,) * axis, MODEL)


def choose_experts(
    config: TargetConfig, devices: int, experts: str, most: int | None = None
) -> TargetConfig:
    """Describe the same model with its experts shared as `experts` says, one of `EXPERTS`.

    Args:
      config: of the target.
      devices: number of them.
      experts: how they share experts.
      most: number of devices that there are, for the message (default: any).

    Raises:
      ValueError: it is none of them; or experts cannot be shared whole, because the model has none,
        there is one device, or `devices` do not divide them.
    """
    if experts not in EXPERTS:
        raise ValueError(f"experts is {experts!r}: {choose_one(experts, EXPERTS)}")
    if experts == "channel":
        return config
    moe = config.moe
    if moe is None or devices == 1 or moe.num_experts % devices:
        count = "no" if moe is None else moe.num_experts
        raise ValueError(
            f"experts is 'expert', and the target has {count} experts for {devices} "
            f"device{'s' if devices > 1 else ''}: {_advise(config, 'expert', most)}"
        )
    return replace_layers(config, lambda c: {"moe": _share_moe(c.moe, devices=devices)})


def replace_layers(config: TargetConfig, change: Callable[[LayerConfig], dict]) -> TargetConfig:
    """Change fields of a config and of those of its layers: what `change` returns for each."""
    layers = tuple(dataclasses.replace(layer, **change(layer)) for layer in config.layers)
    return dataclasses.replace(config, **change(config), layers=layers)


def _share_moe(moe: MoEConfig | None, **changes: int) -> MoEConfig | None:
    return None if moe is None else dataclasses.replace(moe, **changes)


def widen(config: TargetConfig, devices: int, most: int | None = None) -> TargetConfig:
    """Describe the same model with at least one kv head per device, and its own output projection.

    Copies of a kv head, each read by some of the query heads that shared it, change nothing. An
    embedding table that is also the projection is stored twice: whole, and shared by token.

    Args:
      config: of the target, from `choose_experts`.
      devices: number of them.
      most: number of devices that there are, for the message (default: any).

    Raises:
      ValueError: `devices` do not divide the heads or the feed-forward channels.
    """
    refuse_recurrent(config, "be shared by devices yet: load it without mesh")
    experts = "expert" if config.moe is not None and config.moe.devices > 1 else "channel"
    misfit = _find_misfit(config, devices, experts)
    if misfit is not None:
        raise ValueError(
            f"{devices} devices cannot share {misfit}: {_advise(config, experts, most)}"
        )
    wide = replace_layers(config, lambda c: {"num_kv_heads": max(c.num_kv_heads, devices)})
    return dataclasses.replace(wide, tie_embeddings=False)


def list_counts(
    config: TargetConfig, experts: str = "channel", most: int | None = None
) -> list[int]:
    """List the numbers of devices that can share a target, ascending.

    Args:
      config: of the target.
      experts: how they share experts, see `choose_experts`.
      most: largest number to list (default: all that there are).
    """
    counts = range(1, min(config.num_heads, most or config.num_heads) + 1)
    return [count for count in counts if _find_misfit(config, count, experts) is None]


def _find_misfit(config: TargetConfig, devices: int, experts: str) -> str | None:
    """Describe what so many devices cannot share of a target; None if they can share all."""
    moe = config.moe
    for heads, kv in sorted({(c.num_heads, c.num_kv_heads) for c in config.list_layers()}):
        if heads % devices or (kv % devices and devices % kv):
            return f"{heads} heads with {kv} kv heads"
    if experts == "expert":
        count = 0 if moe is None else moe.num_experts
        if not count or devices == 1 or count % devices:
            return f"{count} whole experts"
    for width in _ffn_sizes(config, experts):
        if width % devices:
            return f"{width} feed-forward channels"
    return None


def _advise(config: TargetConfig, experts: str, most: int | None) -> str:
    """Say which numbers of devices can share a target."""
    counts = list_counts(config, experts, most)
    if experts == "channel":
        return f"choose one of {counts}"
    return f"choose one of {counts}, or leave `experts` out" if counts else "leave `experts` out"


def share_of(config: TargetConfig, devices: int) -> TargetConfig:
    """Describe what one device computes of a forward pass of a widened target.

    It has no output projection: `tie_embeddings` only says so.
    """

    def share(c: LayerConfig) -> dict:
        moe = c.moe
        if moe is not None:
            own = moe.expert_ffn_size // (devices if moe.devices == 1 else 1)
            shared = moe.shared_ffn_size // devices
            moe = _share_moe(moe, expert_ffn_size=own, shared_ffn_size=shared)
        return {
            "num_heads": c.num_heads // devices,
            "num_kv_heads": c.num_kv_heads // devices,
            "ffn_size": c.ffn_size // devices,
            "moe": moe,
        }

    return dataclasses.replace(replace_layers(config, share), tie_embeddings=True)


def find_split(
    path: tuple[str, ...], config: TargetConfig, devices: int, scale: bool = False
) -> Split:
    """Find how devices share one array of weights.

    Args:
      path: keys below "params" of the widened target.
      config: of the target as its files describe it.
      devices: number of them.
      scale: whether it is the scales of quantised weights: these have no input axis.
    """
    if len(path) == 1:
        shared = path == ("lm_head",) and config.vocab_size % devices == 0
        return Split(-1) if shared else Split()
    module, name = path[-2:]
    if not path[0].startswith("layers_"):
        return Split()
    layer = config.layer(int(path[0].removeprefix("layers_")))
    if module == "experts" or (module == "mlp" and layer.moe is not None):
        return _find_expert_split(name, layer, devices, scale)
    if module in ("qkv", "q"):
        return Split(-1, _order_heads(layer, devices, module))
    if module in ("q_norm", "k_norm") and layer.qk_norm_whole:
        return Split(-1, _order_heads(layer, devices, module[0]))
    if name == "sinks":
        return Split(-1)
    if module == "gate_up":
        return Split(-1, _order_gate_up(_ffn_size(path, layer), devices))
    if module == "o" and name == "bias":
        return _give_to_first(config.hidden_size, devices)
    if module in ("o", "down"):
        return Split() if scale else Split(-2)
    return Split()


def _find_expert_split(name: str, layer: LayerConfig, devices: int, scale: bool) -> Split:
    """Find how devices share an array of a sparse layer's experts."""
    moe = layer.moe
    if moe.devices > 1 and name in ("gate_up", "down", "gate_up_bias", "down_bias"):
        return Split(-2 if scale or name.endswith("bias") else -3)
    if name in ("gate_up", "gate_up_bias"):
        return Split(-1, _order_gate_up(moe.expert_ffn_size, devices))
    if name == "down":
        return Split() if scale else Split(-2)
    if name == "down_bias":
        return _give_to_first(layer.hidden_size, devices)
    return Split()


def _give_to_first(width: int, devices: int) -> Split:
    """Give a bias to one device alone, because the devices' results are added up."""
    order = np.full((devices, width), -1)
    order[0] = np.arange(width)
    return Split(-1, order)


def _order_heads(layer: LayerConfig, devices: int, kinds: str) -> np.ndarray:
    """Order columns of heads, those of a device side by side.

    Args:
      kinds: what lies side by side as a whole, of queries (q), keys (k) and values (v).
    """
    queries, keys = layer.num_heads, layer.num_kv_heads
    start, before = {}, 0
    for kind, count in zip("qkv", layer.count_columns(), strict=True):
        if kind in kinds and count:
            start[kind], before = before, before + count
    columns: list[np.ndarray] = []
    for device in range(devices):
        first = device * keys // devices
        own = range(first, first + max(keys // devices, 1))
        asked = range(device * queries // devices, (device + 1) * queries // devices)
        for kind in start:
            width = layer.value_dim if kind == "v" else layer.head_dim
            heads = np.array(asked if kind == "q" else own)[:, None]
            columns.append((start[kind] + heads * width + np.arange(width)).ravel())
    return np.concatenate(columns).reshape(devices, -1)


def _order_gate_up(width: int, devices: int) -> np.ndarray:
    """Order the columns of fused gate and up projections: those of a device side by side."""
    gate = np.arange(width).reshape(devices, -1)
    return np.concatenate([gate, width + gate], axis=1)


def _ffn_size(path: tuple[str, ...], layer: LayerConfig) -> int:
    """Return the width of the gated feed-forward that `path` is in."""
    return layer.moe.shared_ffn_size if "shared" in path else layer.ffn_size


def _ffn_sizes(config: TargetConfig, experts: str) -> set[int]:
    """List the numbers of channels that devices share."""
    found = set()
    for layer in config.list_layers():
        if layer.has_dense():
            found.add(layer.ffn_size)
        if layer.moe is None:
            continue
        found |= {layer.moe.shared_ffn_size} - {0}
        found |= {layer.moe.expert_ffn_size} if experts == "channel" else set()
    return found
