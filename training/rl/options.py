"""Options of the recorded, timed and replayed rounds; they must agree between commands."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

from jaxspec.builders import Builder, dynamic, make_builder
from jaxspec.drafters.registry import default_builder
from jaxspec.policies.protocol import Functions, Policy
from jaxspec.policies.rules.static import StaticConfig, make_static

from ..policies.options import ModelsToLoad, PromptsToAnswer


@dataclasses.dataclass(kw_only=True)
class RoundOptions(ModelsToLoad):
    """The models, the builder and the sizes of the rounds.

    Attributes:
      builder: of the trees; None takes the drafter's default. `dynamic` records the pool, other
        builders record the tree.
      width: W of the dynamic tree.
      steps: maximum draft steps after the root's (dynamic tree).
      block_size: of block drafters; None takes the trained size.
      sizes: row counts that a round may verify, the root included; the largest is the tree's
        budget.
    """

    builder: str | None = None
    width: int = 6
    steps: int = 9
    block_size: int | None = None
    sizes: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 24, 32, 48)


@dataclasses.dataclass(kw_only=True)
class TextOptions(RoundOptions, PromptsToAnswer):
    """The rounds and the texts to generate with them.

    Attributes:
      batch: texts recorded together.
      keeps: figures of draft distributions to keep, for networks that observe E or H: of a state of
        320 numbers, 10 steps take 6 KiB a position.
      score_scale: divisor of the drafter's logits in recorded scores, which becomes that of policies
        trained on them, see `PolicyConfig`; 1 is the plain softmax, as in the papers.
    """

    batch: int = 8
    score_scale: float = 1.0
    keeps: tuple[Literal["entropy", "hidden"], ...] = ()


@dataclasses.dataclass(frozen=True)
class WatchingConfig(StaticConfig):
    """A constant policy for whose sake rounds compute figures of their draft distributions."""

    keeps: tuple[str, ...] = ()

    def functions(self) -> Functions:
        return _watch(self)


@functools.lru_cache
def _watch(config: WatchingConfig) -> Functions:
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(StaticConfig)}
    return StaticConfig(**own).functions()._replace(needs=frozenset(config.keeps))


def builder_of(params, options: RoundOptions) -> Builder:
    """Return the builder of the rounds."""
    default = default_builder(params.spec.drafter(options.drafter))
    builder = make_builder(options.builder or default)
    return dynamic(options.width) if builder == dynamic() else builder


def sees_pool(params, options: RoundOptions) -> bool:
    """Tell whether rounds record the pool of a dynamic tree; otherwise they record the tree."""
    return builder_of(params, options) == dynamic(options.width)


def static_policy(options: TextOptions, steps: int | None = None) -> Policy:
    """Make the policy of recorded rounds: it verifies the root, and reads the record's scores.

    Args:
      steps: draft steps that its controls name; None: it does not decide about them.
    """
    policy = make_static(steps, 1, tuple(sorted({1, *options.sizes})))
    config = dataclasses.replace(policy.config, score_scale=options.score_scale)
    if options.keeps:
        config = WatchingConfig(**vars(config), keeps=tuple(options.keeps))
    return policy.replace(config=config)


def decode_options(params, options: RoundOptions) -> dict:
    """Return options of `jaxspec.decode` for the recorded rounds."""
    builder = builder_of(params, options)
    settings = {"drafter": options.drafter, "builder": builder, "budget": options.sizes[-1]}
    if sees_pool(params, options):
        settings |= {"depth": options.steps + 1}
    return settings | ({} if options.block_size is None else {"block_size": options.block_size})
