"""Which builder goes with which drafter: the one list that checks, the benchmark's `all`, the
documentation and tests go by.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxspec.core import config as configs
from jaxspec.drafters.falcon.drafter import falcon_paths
from jaxspec.drafters.registry import make_drafter


class Suits(NamedTuple):
    """Builders of one kind of drafter.

    Attributes:
      compared: those that the benchmark's `all` measures. further: those that work as well.
    """

    compared: tuple[str, ...]
    further: tuple[str, ...] = ()


_STEP_BY_STEP = Suits(("chain", "dynamic"), ("static",))
# `best_first`, `expand` and `beam` need every depth before they choose: of drafters that work in
# blocks they take the first.
SUITS: dict[type, Suits] = {
    configs.BlockDrafterConfig: Suits(
        ("chain", "best_first", "expand"), ("beam", "static", "dynamic")
    ),
    configs.EagleConfig: _STEP_BY_STEP,
    configs.SmallModelConfig: _STEP_BY_STEP,
    configs.SpecBlockConfig: Suits(
        ("chain", "rank_guided", "best_first"), ("static", "expand", "beam")
    ),
    configs.FalconConfig: Suits(("chain", "static"), ("best_first", "expand", "beam")),
    configs.MedusaConfig: Suits(("chain", "best_first", "static"), ("expand", "beam", "dynamic")),
    configs.ParallelSpecConfig: Suits(
        ("chain", "best_first"), ("expand", "beam", "static", "dynamic")
    ),
    configs.PromptLookupConfig: Suits(("chain",)),
}


def suits(config) -> tuple[str, ...]:
    """Names of the builders that go with the drafter of `config`."""
    one = SUITS[type(config)]
    return one.compared + one.further


def check_suits(builder: str, method: str, config) -> None:
    """Raise ValueError, saying what does, where `builder` does not go with the drafter of `config`,
    called `method`.
    """
    going = suits(config)
    if builder in going:
        return
    known = {name for one in SUITS.values() for name in one.compared + one.further}
    what = (
        f"builder {builder!r} does not go with {method!r}"
        if builder in known
        else f"unknown builder {builder!r}"
    )
    raise ValueError(f"{what}: choose one of {', '.join(going)}")


def static_paths(config, rows: int) -> list[tuple[int, ...]]:
    """A tree of at most `rows` rows, the root included, for builder `static` where only the
    drafter's sizes are known.

    The rank r of a node is taken to hold with probability 0.6 * 0.4 ** r, see
    `drafters.falcon.falcon_paths`.
    """
    slots = make_drafter(config).slots
    return falcon_paths(slots, -(-config.depth // slots), rows - 1)
