"""Records of rotary position embeddings (RoPE), as configs of targets and drafters hold them.

`jaxspec.targets.rope` computes rotations from them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """All rotations are `factor` times slower (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Slow rotations are `factor` times slower, fast ones are kept (Llama 3 report, 3.2)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Slow rotations are `factor` times slower, by a ramp over the pairs (YaRN, Peng et al. 2023).

    Attributes:
      factor: of the slow rotations.
      original_max_positions: length that the model was trained with before.
      beta_fast, beta_slow: turns within that length at which the ramp begins and ends.
      magnitude: factor of cosines and sines, of queries and of keys; scores grow by its square.
      truncate: whether the ramp begins and ends at whole pairs.
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    truncate: bool = True


@dataclasses.dataclass(frozen=True)
class LongRopeScaling:
    """Every rotation has a factor of its own (LongRoPE, Ding et al. 2024).

    Attributes:
      short, long: by how much slower each pair rotates, in caches of up to
        `original_max_positions` rows and in longer ones.
      original_max_positions: length that the model was trained with before.
      magnitude: see `YarnScaling`.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_positions: int
    magnitude: float = 1.0


@dataclasses.dataclass(frozen=True)
class ProportionalScaling:
    """The first pairs of the whole head rotate, the others stand still (Gemma 4).

    Attributes:
      share: of the pairs that rotate; frequencies are those of the whole head.
      factor: see `LinearScaling`.
    """

    share: float
    factor: float = 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | ProportionalScaling


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotation of queries and keys by their position (RoPE, Su et al. 2021).

    Components i and i + r / 2 of the first r of a head are a pair; the others are not rotated.

    Attributes:
      theta: base of the frequencies.
      scaling: how they are changed for longer texts; None: not at all.
      share: r as a share of the head's components.
    """

    theta: float = 1e6
    scaling: RopeScaling | None = None
    share: float = 1.0

    def count_rotated(self, head_dim: int) -> int:
        """Count the components r that are rotated, of `head_dim`."""
        return int(head_dim * self.share)
