"""What a decode call compiles: its static settings, and the bundles and sizes that they stand
for.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from jaxspec.builders import ALIASES, Builder, Rule, make_builder, make_stepper
from jaxspec.builders.static import Paths, skips_ranks
from jaxspec.builders.stepwise import Stepper
from jaxspec.core.params import Spec
from jaxspec.core.sampling import SamplingSpec
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.combinations import check_suits
from jaxspec.drafters.registry import make_drafter, record_of
from jaxspec.drafters.sizes import resize_drafter
from jaxspec.policies.protocol import Functions, Settings, Shape
from jaxspec.targets.transformer import Transformer

# Rows of plain rounds that a drafter absorbs together.
QUEUE = 32

ACCEPTANCE = ("match", "sequential", "rejection")


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static choices of a decode call; each distinct value is one compilation.

    Attributes:
      method: `ar`, or the name of a drafter.
      builder: `chain`, `best_first`, `expand`, `beam`, `static`, `dynamic` or `rank_guided`; None:
        what suits the drafter.
      budget: rows verified in a round, the root included.
      block_size: slots of a block drafter's block, the anchor included; None is the drafter's own.
      depth: longest path of drafters that work in steps; None is the drafter's own.
      tree_width: children per expanded node of `expand`, nodes per level of `beam` and `dynamic`,
        the root's candidates of `rank_guided`.
      fanout: rule that gives nodes fewer children, see `builders.fanout` (`expand`), or map of rank
        classes to widths (`rank_guided`).
      paths: the tree of `static`, see `builders.make_paths`.
      score, entropy_weight: what paths are ordered by, see `builders.scores.Score`.
      sampling: which sampling steps exist.
      acceptance: `match` (draft-invariant), `sequential` or `rejection`.
      coupled: the drafter ranks its candidates under the target's noise (`match` at temperature >
        0).
      score_temperature: divisor of the draft logits when paths are scored; None is the drafter's
        own.
      policy: decides what rounds do below these caps; None: as much as they allow.
    """

    method: str
    sampling: SamplingSpec
    builder: str | None = None
    budget: int = 32
    block_size: int | None = None
    depth: int | None = None
    tree_width: int | None = None
    fanout: str | Rule | None = None
    paths: Paths | None = None
    score: str = "logprob"
    entropy_weight: float | None = None
    acceptance: str = "match"
    coupled: bool = True
    score_temperature: float | None = None
    policy: Settings | None = None


class Plan(NamedTuple):
    """The bundles and static sizes that a DecodeConfig stands for.

    Attributes:
      builder: of trees from one step's candidates, a `Stepper` of trees that grow while the drafter
        runs; None for `ar`.
      widths: numbers of rows that verification is compiled for, ascending; the last is the tree's
        capacity.
      longest: most tokens that one round commits, A.
      policy: functions of the policy, or None.
    """

    target: Transformer
    drafter: Drafter | None
    builder: Builder | Stepper | None
    widths: tuple[int, ...]
    longest: int
    policy: Functions | None = None

    @property
    def waiting(self) -> int:
        """Rows that may wait for the drafter to absorb them: none where every round drafts."""
        return (
            0 if self.policy is None or self.policy.act.draft is None else max(self.longest, QUEUE)
        )

    def shape(self, batch: int) -> Shape:
        """Sizes that a policy's state may depend on."""
        steps = (
            (self.builder.nodes, self.builder.candidates, self.builder.steps)
            if self.in_steps
            else (0, 0, 0)
        )
        return Shape(batch, self.widths[-1], self.longest - 1, *steps)

    @property
    def in_steps(self) -> bool:
        """Whether the drafter runs while the tree grows."""
        return (
            self.drafter is not None
            and self.drafter.expand is not None
            and isinstance(self.builder, Stepper)
        )


@functools.lru_cache(maxsize=256)
def make_plan(spec: Spec, config: DecodeConfig) -> Plan:
    """Resolve names to bundles; cached, so that equal settings never compile twice.

    Raises:
      ValueError: unknown method or builder, a builder that does not go with the drafter, or a size
        out of range.
    """
    target = Transformer(spec.target)
    if config.method == "ar":
        return Plan(target, None, None, (1,), 1)
    drafter_config = _sized(spec.drafter(config.method), config)
    drafter = make_drafter(drafter_config)
    builder = _make_builder(config, drafter_config, drafter)
    if config.acceptance == "rejection":
        _check_rejection(config, builder)
    if config.policy is not None:
        _check_policy(config, drafter_config, drafter, builder)
    if builder.rows == 1:
        return Plan(target, None, None, (1,), 1)
    record = record_of(drafter_config)
    if record.causal_slots and builder.longest < drafter_config.depth:
        # Slots that the tree cannot hold need not be computed.
        drafter = make_drafter(record.resize(drafter_config, builder.longest))
    policy = None if config.policy is None else config.policy.functions()
    return Plan(
        target,
        drafter,
        builder,
        _widths(builder.rows, config, drafter_config),
        builder.longest + 1,
        policy,
    )


def drafter_forwards(plan: Plan, config: DecodeConfig, spec: Spec) -> int:
    """Forwards of the drafter in a round, at most: one for the root's proposal and one for every
    further step of the tree.

    The first is counted where it is part of `absorb` (EAGLE-3, SpecBlock, a small model) as where
    it is part of `start`, and drafters that retrieve have none. A round takes fewer only where no node is
    left to draft from.
    """
    if plan.drafter is None or record_of(spec.drafter(config.method)).retrieval:
        return 0
    return 1 + (plan.builder.steps if plan.in_steps else 0)


def _sized(drafter, config: DecodeConfig):
    """The drafter's config with the call's block size or depth."""
    if config.block_size is not None:
        drafter = resize_drafter(drafter, config.method, config.block_size - 1, "block_size")
    return resize_drafter(drafter, config.method, config.depth)


def _make_builder(config: DecodeConfig, drafter_config, drafter: Drafter) -> Builder | Stepper:
    name = config.builder or record_of(drafter_config).default_builder
    check_suits(ALIASES.get(name, name), config.method, drafter_config)
    in_steps = drafter.expand is not None
    vocab = drafter_config.draft_vocab_size or drafter_config.vocab_size
    depth = config.depth or drafter.depth
    if not in_steps and depth > drafter.depth:
        raise ValueError(
            f"depth is {depth}: {config.method!r} drafts at most {drafter.depth} tokens"
        )
    if name in ("dynamic", "rank_guided") or (in_steps and name in ("chain", "static")):
        if config.score != "logprob" or config.entropy_weight is not None:
            raise ValueError(
                f"score {config.score!r} is for trees of one step: leave it out with builder {name!r}"
            )
        return make_stepper(
            name,
            slots=drafter.slots if in_steps else 1,
            depth=depth,
            vocab_size=vocab,
            budget=config.budget,
            tree_width=config.tree_width,
            paths=config.paths,
            ranked=drafter.rank_classes > 0,
            classes=config.fanout,
        )
    return make_builder(
        name,
        depth=min(depth, drafter.slots),
        vocab_size=vocab,
        budget=config.budget,
        tree_width=config.tree_width,
        fanout=config.fanout,
        paths=config.paths,
        score=config.score,
        entropy_weight=config.entropy_weight,
    )


def _check_rejection(config: DecodeConfig, builder: Builder | Stepper) -> None:
    if config.policy is not None:
        raise ValueError(
            "acceptance 'rejection' needs trees whose shape no score decides: leave the policy out"
        )
    if config.paths and skips_ranks(config.paths):
        raise ValueError(
            "acceptance 'rejection' needs siblings of ranks 0, 1, ...: a node in paths skips one"
        )
    if isinstance(builder, Stepper) and builder.candidates > 1:
        raise ValueError(
            "acceptance 'rejection' of a tree that grows in steps is not supported: choose builder 'chain', or acceptance "
            "'sequential'"
        )


def _check_policy(
    config: DecodeConfig, drafter_config, drafter: Drafter, builder: Builder | Stepper
) -> None:
    act, in_steps = (
        config.policy.functions().act,
        drafter.expand is not None and isinstance(builder, Stepper),
    )
    if act.block and not record_of(drafter_config).blocks:
        raise ValueError(
            f"the policy chooses block sizes, and {config.method!r} drafts no blocks: choose another policy"
        )
    if (act.deeper or act.keep) and not (act.draft or act.block or act.rows or in_steps):
        raise ValueError(
            f"the policy stops drafting, and {config.method!r} drafts in one step: choose another policy"
        )
    if act.keep and in_steps and builder.slots > 1:
        raise ValueError(
            f"the policy picks nodes of a level, but {config.method!r} drafts several levels a step: leave it out"
        )
    if config.score != "logprob":
        raise ValueError(f"a policy weighs path probabilities: leave score {config.score!r} out")
    if config.policy.widths and builder.rows > config.policy.widths[-1]:
        raise ValueError(
            f"budget is {config.budget}, and the policy's times reach {config.policy.widths[-1]} rows: give at most that, or "
            "measure again"
        )


def _widths(rows: int, config: DecodeConfig, drafter_config) -> tuple[int, ...]:
    """Verification widths: the policy's, or else the capacity, and a quarter of it where trees may
    come out small.

    A policy that names none gets powers of two.
    A restricted vocabulary (top-k, top-p, min-p) leaves a builder short of candidates, a fan-out
    rule of children; otherwise every tree is full, and a second width would be compiled for
    nothing. Prompt lookup often finds nothing.
    """
    if config.policy is not None:
        widths = config.policy.widths or tuple(1 << i for i in range(rows.bit_length()))
        return (*(width for width in widths if width < rows), rows)
    if record_of(drafter_config).retrieval:
        return (1, rows)
    sampling = config.sampling
    varies = sampling.top_k or sampling.top_p or sampling.min_p or config.fanout is not None
    return (-(-rows // 4), rows) if varies and rows >= 8 else (rows,)
