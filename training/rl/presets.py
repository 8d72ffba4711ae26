"""LTD's published settings, and this project's."""

from __future__ import annotations

import dataclasses

from .ppo import PpoSettings

# Row counts that the published size policies choose from, the root included: the paper's 12 actions
# and the code's 24.
PAPER_SIZES = tuple(1 + 20 * i for i in range(1, 13))
FIXED_ROWS = 61  # 60 drafted tokens, of the first depth stage
CODE_SIZES = tuple(1 + 10 * i for i in range(1, 25))


# Options of `record` and `times` for these: ten nodes a level, twelve draft steps after the root's,
# which is a pool of 1,210 candidates.
ROUNDS = {
    "jaxspec": {},
    "ltd-paper": dict(width=10, steps=12, sizes=PAPER_SIZES),
    "ltd-code": dict(width=10, steps=12, sizes=CODE_SIZES),
}


@dataclasses.dataclass(frozen=True)
class LtdPreset:
    """Settings of LTD's training.

    Attributes:
      size, depth: hyper-parameters of each policy.
      reward: see `environment.reward_of`.
      observes: inputs of the networks, one of `ltd_features.OBSERVES`.
      random_depth: train the first size policy on depths drawn uniformly; otherwise on the largest
        depth.
      first: draft steps before the depth policy's first decision in training.
      every: draft steps between its decisions in training.
      first_act, acts_every: the same in use. The published code decides after every step in
        training, but only after 3, 6 and 9 steps in use.
      weighted: leave actions without effect out of the batch.
      stale: before a round's first step, show the depth policy the previous round's scores.
      fixed_rows: rows verified while there is no size policy yet, the root included; None takes the
        best constant's.
      schedule: stages in order; each policy's first stage runs without the other policy.
    """

    size: PpoSettings
    depth: PpoSettings
    reward: str = "throughput"
    observes: str = "P+D+L"
    random_depth: bool = True
    first: int = 1
    every: int = 1
    first_act: int = 1
    acts_every: int = 1
    weighted: bool = True
    stale: bool = False
    fixed_rows: int | None = None
    schedule: tuple[str, ...] = ("size", "depth", "size", "depth", "size")


_SIZE = PpoSettings(100_000, gamma=0.9, actor=(1024, 256), critic=(1024, 256))
_DEPTH = PpoSettings(1_000_000, gamma=0.999, actor=(1024,), critic=(1024, 256))
_SCRIPT = dict(
    rollout=128,
    minibatch=64,
    epochs=1,
    rate=3e-4,
    gamma=0.99,
    entropy=0.0,
    activation="tanh",
    negative_rate=True,
)

PRESETS = {
    # Zhang et al. 2026, section 5 and appendix, with Stable-Baselines3's defaults for the rest.
    "ltd-paper": LtdPreset(_SIZE, _DEPTH, weighted=False, stale=True, fixed_rows=FIXED_ROWS),
    # The shipped scripts' constants; the depth is always 12, although the paper draws it.
    "ltd-code": LtdPreset(
        dataclasses.replace(_SIZE, **_SCRIPT),
        dataclasses.replace(_DEPTH, steps=100_000, **_SCRIPT),
        random_depth=False,
        first_act=3,
        acts_every=3,
        weighted=False,
        stale=True,
        fixed_rows=FIXED_ROWS,
    ),
    # This project's: maximise total tokens over total time, no discount within a round, fewer
    # passes over a rollout, a decision wherever the loop can stop (also before the first step), and
    # networks that take almost no time. With a small target, the paper's networks take as much time
    # as they save.
    "jaxspec": LtdPreset(
        dataclasses.replace(_SIZE, steps=200_000, epochs=8, gamma=1.0, actor=(128, 64)),
        dataclasses.replace(_DEPTH, steps=600_000, epochs=8, gamma=1.0, actor=(128,)),
        reward="renewal",
        first=0,
        first_act=0,
    ),
}
