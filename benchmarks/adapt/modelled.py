"""What rounds and updates would take on a large model and a GPU, by arithmetic.

A round reads the weights of the target and of the drafter. A gradient step computes 6 operations per
trained weight and position, and moves 26 bytes per trained weight: AdamW with float32 master
weights, moments and gradients, and 16-bit copies to train, to decode and to stay near. A test is a
forward pass with 2 operations per weight and position. The drafter is a SpecBlock-like one: a layer
of the target's sizes, the fusion of three features, and a projection to 32,768 tokens. Nothing here was
timed.
"""

from __future__ import annotations

import dataclasses

from jaxspec.adapt.actions import FULL
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.costs.roofline import DEVICES, check_dense
from jaxspec.costs.shared_roofline import COMPUTE, MEMORY, NVLINK

DRAFTED, FEATURES, BYTES_PER_WEIGHT = 32_768, 3, 26
HOST_LINK = 50e9  # bytes a second; PCI Express 5 with 16 lanes has 63e9 at most


@dataclasses.dataclass(frozen=True)
class Model:
    """A target and its drafter on a device.

    Attributes:
      architecture: name of the target. device: name of the device.
      target, drafter, head: numbers of weights; the head is part of the drafter.
    """

    architecture: str
    device: str
    target: int
    drafter: int
    head: int

    @property
    def round_seconds(self) -> float:
        """Seconds of a round: the weights are read once, in 16 bits."""
        rate = MEMORY * DEVICES[self.device].bandwidth
        return 2 * (self.target + self.drafter) / rate

    @property
    def load_seconds(self) -> float:
        """Seconds in which the host sends an older version, in 32 bits."""
        return 4 * self.drafter / HOST_LINK

    def step_flops(self, action: str, positions: int) -> float:
        """Operations of a gradient step on `positions` positions."""
        return 6.0 * self._trained(action) * positions

    def step_bytes(self, action: str) -> float:
        """Bytes that a gradient step moves."""
        return float(BYTES_PER_WEIGHT * self._trained(action))

    def step_seconds(self, action: str, positions: int) -> float:
        """Seconds of a gradient step."""
        device = DEVICES[self.device]
        compute = self.step_flops(action, positions) / (COMPUTE * device.flops)
        return compute + self.step_bytes(action) / (MEMORY * device.bandwidth)

    def pass_seconds(self, positions: int) -> float:
        """Seconds of a forward pass of the drafter, which reads its weights once, in 16 bits."""
        device = DEVICES[self.device]
        compute = 2 * self.drafter * positions / (COMPUTE * device.flops)
        return compute + 2 * self.drafter / (MEMORY * device.bandwidth)

    @property
    def copy_seconds(self) -> float:
        """Seconds in which a second device, which trains, sends a version to the one that decodes."""
        return NVLINK.latency + 2 * self.drafter / NVLINK.bandwidth

    def _trained(self, action: str) -> int:
        return self.drafter if action == FULL else self.head


def make_model(architecture: str = "qwen3-8b", device: str = "h100") -> Model:
    """Count the weights of an architecture.

    Raises:
      ValueError: unknown name, or an architecture with experts.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"unknown architecture {architecture!r}: {choose_one(architecture, ARCHITECTURES)}"
        )
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}: {choose_one(device, DEVICES)}")
    c = ARCHITECTURES[architecture]
    check_dense(c)
    width = c.hidden_size
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    attention, ffn = 2 * width * (heads + kv), 3 * width * c.ffn_size
    tables = (1 if c.tie_embeddings else 2) * c.vocab_size * width
    head = DRAFTED * width
    layer = attention + ffn
    drafter = layer + FEATURES * width**2 + head
    return Model(architecture, device, c.num_layers * layer + tables, drafter, head)
