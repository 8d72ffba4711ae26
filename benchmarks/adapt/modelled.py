"""What rounds and updates would take on a large model and a GPU, by arithmetic.

A round reads the weights of the target and of the drafter. The drafter is a SpecBlock-like one: a
layer of the target's sizes, the fusion of three features, and a projection to 32,768 tokens. A pass
over a batch drafts four segments of 128 tokens again, with four slots each: its trunk runs over 2,048
rows, and its head projects the positions that are read. Both compute 2 operations per weight and
row. A gradient step computes 4 more for all weights or, head-only, 2 more for those of the head; and
it runs the drafter before deployment, which it stays near. A head-only step from kept outputs runs
no trunk. Rounds that are drafted again in parts are not counted twice, nor is attention. A step
moves 26 bytes per trained weight:
AdamW with float32 master weights, moments and gradients, and 16-bit copies to train, to decode and
to stay near. What a trunk that is not trained reads comes to that. Nothing here was timed.
"""

from __future__ import annotations

import dataclasses

from jaxspec.adapt.actions import FULL
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.costs.roofline import DEVICES, check_dense
from jaxspec.costs.shared_roofline import COMPUTE, MEMORY, NVLINK

DRAFTED, FEATURES, BYTES_PER_WEIGHT = 32_768, 3, 26
ROWS = 4 * 128 * 4  # of a pass: segments of a batch, their tokens, slots of a token
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

    def step_flops(
        self, action: str, positions: int, redrafts: bool, anchored: bool = True
    ) -> float:
        """Operations of a gradient step on `positions` positions, see `Prices.step_seconds`."""
        head = self.head * positions
        forward = (1 + anchored) * (self.pass_flops(positions) if redrafts else 2.0 * head)
        return forward + (4.0 * (self.trunk * ROWS + head) if action == FULL else 2.0 * head)

    def step_bytes(self, action: str, redrafts: bool, anchored: bool = True) -> float:
        """Bytes that a gradient step moves."""
        if action == FULL:
            return float(BYTES_PER_WEIGHT * self.drafter)
        read = 2 * self.trunk * (1 + anchored) if redrafts else 0
        return float(BYTES_PER_WEIGHT * self.head + read)

    def step_seconds(
        self, action: str, positions: int, redrafts: bool, anchored: bool = True
    ) -> float:
        """Seconds of a gradient step."""
        flops = self.step_flops(action, positions, redrafts, anchored)
        return self._take(flops, self.step_bytes(action, redrafts, anchored))

    def pass_flops(self, positions: int) -> float:
        """Operations of a forward pass over a batch of segments."""
        return 2.0 * (self.trunk * ROWS + self.head * positions)

    def pass_seconds(self, positions: int) -> float:
        """Seconds of a forward pass of the drafter, which reads its weights once, in 16 bits."""
        return self._take(self.pass_flops(positions), 2.0 * self.drafter)

    def read_seconds(self, positions: int) -> float:
        """Seconds of a projection of kept outputs, which reads the head once."""
        return self._take(2.0 * self.head * positions, 2.0 * self.head)

    @property
    def copy_seconds(self) -> float:
        """Seconds in which a second device, which trains, sends a version to the one that decodes."""
        return NVLINK.latency + 2 * self.drafter / NVLINK.bandwidth

    @property
    def trunk(self) -> int:
        """Weights of the drafter without its head."""
        return self.drafter - self.head

    def _take(self, flops: float, moved: float) -> float:
        device = DEVICES[self.device]
        return flops / (COMPUTE * device.flops) + moved / (MEMORY * device.bandwidth)


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
