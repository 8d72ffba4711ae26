"""LTD's published settings and ours."""

from __future__ import annotations

import dataclasses

from training.rl.ppo import PpoSettings

# Rows that the published size policies choose between, the root included: the paper's 12 actions
# and the code's 24.
PAPER_SIZES = tuple(1 + 20 * i for i in range(1, 13))
CODE_SIZES = tuple(1 + 10 * i for i in range(1, 25))


@dataclasses.dataclass(frozen=True)
class LtdPreset:
    """How LTD is trained.

    Attributes:
      size, depth: hyper-parameters of each policy.
      reward: see `environment.reward_of`.
      observes: what the networks see, one of `ltd_features.OBSERVES`.
      random_depth: train the size policy alone on depths drawn uniformly; else on the largest.
      first: draft steps after which the depth policy is asked first in training, then after `every`
        more. first_act, acts_every: the same in use, where the published code asks after 3, 6 and 9
        what it trained after every step.
      weighted: actions without effect do not enter the batch. stale: before a round's first step
        the depth policy sees the scores of the round before.
      schedule: stages in order, the first of each policy without the other.
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
    # Zhang et al. 2026, section 5 and appendix; what the paper leaves open as in Stable-Baselines3.
    "ltd-paper": LtdPreset(_SIZE, _DEPTH, weighted=False, stale=True),
    # The shipped scripts: their constants, and depth 12 throughout although the paper draws it.
    "ltd-code": LtdPreset(
        dataclasses.replace(_SIZE, **_SCRIPT),
        dataclasses.replace(_DEPTH, steps=100_000, **_SCRIPT),
        random_depth=False,
        first_act=3,
        acts_every=3,
        weighted=False,
        stale=True,
    ),
    # Ours: total tokens over total time as the goal, no discount within a round, fewer passes over
    # a rollout, a decision at every depth where the loop can stop, before the first step too, and
    # networks that cost a round next to nothing: beside a small target the paper's take what they
    # gain.
    "jaxspec": LtdPreset(
        dataclasses.replace(_SIZE, steps=200_000, epochs=8, gamma=1.0, actor=(128, 64)),
        dataclasses.replace(_DEPTH, steps=600_000, epochs=8, gamma=1.0, actor=(128,)),
        reward="renewal",
        first=0,
        first_act=0,
    ),
}
