"""Static settings of a decode call, and the parts that they select."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxspec.builders import Builder, Growth, Proposes, Unsuitable, parse_builder
from jaxspec.core.params import Spec
from jaxspec.core.sampling.settings import SamplingSpec
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.prompt_lookup.mixture import mix_lookup
from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.registry import default_builder, make_drafter, record_of
from jaxspec.policies.protocol import Functions, PolicyConfig, RoundShape
from jaxspec.round.sizes import powers_of_two
from jaxspec.targets.transformer import Transformer

# Rows of autoregressive rounds that a drafter absorbs together.
QUEUE = 32

ACCEPTANCE = ("match", "sequential", "rejection")


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static choices of a decode call; each distinct value is one compilation.

    Attributes:
      drafter: `ar`, or the name of a drafter.
      sampling: which sampling steps are compiled.
      builder: see `jaxspec.builders`; None: the drafter's default.
      budget: rows that a round verifies, the root included.
      depth: longest drafted path, in tokens; None is the drafter's own.
      acceptance: `match` (draft-invariant), `sequential` or `rejection`.
      coupled: rank candidates under the target's noise (`match` at temperature > 0).
      lookup: mix looked-up tokens into the drafter's proposals: False, True for prompt lookup, or
        another source, see `jaxspec.drafters.prompt_lookup.mixture`.
      score_temperature: divisor of the draft logits when paths are scored; None: the drafter's own.
      policy: what decides below these limits; None: rounds do as much as the limits allow.
      evidence: rows per sequence that keep what training the drafter needs, see
        `jaxspec.round.evidence`; 0: nothing is kept.
    """

    drafter: str
    sampling: SamplingSpec
    builder: Builder | None = None
    budget: int = 32
    depth: int | None = None
    acceptance: str = "match"
    coupled: bool = True
    lookup: bool | str = False
    score_temperature: float | None = None
    policy: PolicyConfig | None = None
    evidence: int = 0


class Plan(NamedTuple):
    """The functions and static sizes that a DecodeConfig selects.

    Attributes:
      target: the target model.
      drafter: the drafter, or None for `ar`.
      growth: how trees grow, or None for `ar`.
      widths: numbers of rows that verification is compiled for, ascending. The last is the tree's
        capacity.
      longest: largest number of tokens that a round commits, A.
      policy: functions of the policy, or None.
      blocks: {block size: the drafter of blocks of this size}, ascending, of the sizes that
        drafting is compiled for. Empty unless the policy chooses block sizes.
    """

    target: Transformer
    drafter: Drafter | None
    growth: Growth | None
    widths: tuple[int, ...]
    longest: int
    policy: Functions | None = None
    blocks: Mapping[int, Drafter] = MappingProxyType({})

    @property
    def waiting(self) -> int:
        """Rows that may wait for the drafter to absorb them; 0 if every round drafts."""
        skips = self.policy is not None and self.policy.act.draft is not None
        return max(self.longest, QUEUE) if skips else 0

    def shape(self, batch: int) -> RoundShape:
        """Return the sizes that a policy's state may depend on."""
        growth, rows, depth = self.growth, self.widths[-1], self.longest - 1
        if growth is None or not self.in_steps:
            return RoundShape(batch, rows, depth)
        return RoundShape(batch, rows, depth, growth.nodes, growth.candidates, growth.steps)

    @property
    def in_steps(self) -> bool:
        """Whether trees grow while the drafter runs. Rounds then keep a pool of nodes."""
        return self.growth is not None and self.growth.nodes > 0

    @property
    def asks_policy(self) -> bool:
        """Whether the policy decides after draft steps, or reads figures of their distributions."""
        return self.in_steps and self.policy is not None and self.policy.follows_steps

    @property
    def steps(self) -> int:
        """Largest number of draft steps of a round after the root's."""
        return 0 if self.growth is None else self.growth.steps


@functools.lru_cache(maxsize=256)
def make_plan(spec: Spec, config: DecodeConfig) -> Plan:
    """Select the functions that a config names. Cached, so that equal settings never compile twice.

    Raises:
      ValueError: unknown drafter, a builder that does not suit the drafter, or a size out of range.
    """
    target = Transformer(spec.target)
    if config.drafter == "ar":
        return Plan(target, None, None, (1,), 1)
    drafter_config = spec.drafter(config.drafter)
    record = record_of(drafter_config)
    if config.depth is not None:
        drafter_config = record.resize(drafter_config, config.depth)
    drafter = _make_drafter(config, drafter_config)
    builder = config.builder or parse_builder(default_builder(drafter_config))
    growth = _bind(builder, config, record, drafter_config, drafter)
    if config.acceptance == "rejection":
        _check_rejection(config, builder, growth)
    if config.policy is not None:
        _check_policy(config, config.policy, record.blocks, builder, growth)
    if growth.rows == 1:
        return Plan(target, None, None, (1,), 1)
    if record.causal_slots and growth.longest < drafter_config.depth:
        # Skip slots that are too deep for the tree.
        drafter = _make_drafter(config, record.resize(drafter_config, growth.longest))
    policy = None if config.policy is None else config.policy.functions()
    varies = builder.varies or drafter.most_nodes is not None
    widths = _choose_widths(growth.rows, config, varies, record.retrieval)
    sizes = _choose_blocks(policy, growth.longest + 1)
    blocks = {
        size: _make_drafter(config, record.resize(drafter_config, size - 1)) for size in sizes
    }
    return Plan(target, drafter, growth, widths, growth.longest + 1, policy, blocks)


def suits_lookup(spec: Spec, name: str) -> bool:
    """Whether calls that choose by cost mix prompt lookup into what a drafter proposes.

    Lattice trees would lose the lookahead, or the tables, that they are built from.
    """
    if name == "ar":
        return False
    config = spec.drafter(name)
    drafter = make_drafter(config)
    at_once = drafter.look_ahead is not None or drafter.conditions is not None
    return not record_of(config).retrieval and not at_once


def _make_drafter(config: DecodeConfig, drafter_config: Any) -> Drafter:
    drafter = make_drafter(drafter_config)
    return mix_lookup(drafter, config.lookup) if config.lookup else drafter


def drafter_forwards(plan: Plan, config: DecodeConfig, spec: Spec) -> int:
    """Count the drafter's forward passes in a round, at most.

    One proposes the root's children, and each further step of the tree takes another, unless the
    drafter needs one alone. The first counts whether `absorb` runs it (EAGLE-3, SpecBlock, a draft
    model) or `start`. Drafters that retrieve have none. A round takes fewer if no node is left to
    draft from.
    """
    if plan.drafter is None:
        return 0
    record = record_of(spec.drafter(config.drafter))
    if record.retrieval:
        return 0
    return 1 if record.one_forward else 1 + plan.steps


def _bind(
    builder: Builder,
    config: DecodeConfig,
    record: DrafterRecord,
    drafter_config: Any,
    drafter: Drafter,
) -> Growth:
    """Bind the builder to what the drafter proposes."""
    in_steps = drafter.expand is not None
    depth = config.depth or drafter.depth
    if not in_steps and depth > drafter.depth:
        raise ValueError(
            f"depth is {depth}: {config.drafter!r} drafts at most {drafter.depth} tokens"
        )
    vocab_size = drafter_config.draft_vocab_size or drafter_config.vocab_size
    proposes = Proposes(
        depth=depth,
        slots=drafter.slots,
        vocab_size=drafter.choices or vocab_size,
        retrieved=drafter.choices == 1,
        budget=config.budget,
        steps=in_steps,
        rank_classes=drafter.rank_classes,
        confident=drafter.confident,
        looks_ahead=drafter.look_ahead is not None,
    )
    try:
        return builder.bind(proposes)
    except Unsuitable as error:
        suitable = ", ".join(record.builders)
        raise ValueError(
            f"builder {builder.name!r} does not suit {config.drafter!r}: "
            f"choose one of {suitable} ({error})"
        ) from None


def _check_rejection(config: DecodeConfig, builder: Builder, growth: Growth) -> None:
    if config.policy is not None:
        raise ValueError(
            "acceptance 'rejection' needs trees whose shape no score decides: leave the policy out"
        )
    builder.check_drawn(growth)


def _check_policy(
    config: DecodeConfig, policy: PolicyConfig, blocks: bool, builder: Builder, growth: Growth
) -> None:
    """Raise ValueError if a policy cannot decide about these trees."""
    functions, in_steps = policy.functions(), growth.nodes > 0
    act, name = functions.act, repr(config.drafter)
    stops, most = act.deeper or act.keep, policy.widths[-1] if policy.widths else growth.rows
    faults = {
        "the policy follows draft steps, and a shortlist computes all levels at once: "
        "leave 'shortlist' or the policy out": growth.shortlist and functions.follows_steps,
        f"the policy reads a chain, and builder '{builder}' branches: use 'chain'": (
            functions.chains and growth.candidates > 1
        ),
        f"the policy chooses block sizes, and {name} drafts no blocks: choose another policy": (
            act.block and not blocks
        ),
        f"the policy stops drafting, and {name} drafts in one step: choose another policy": (
            stops and not (act.draft or act.block or act.rows or in_steps)
        ),
        f"the policy picks nodes of a level, but {name} drafts several levels a step: "
        "leave it out": act.keep and in_steps and growth.slots > 1,
        f"a policy weighs path probabilities, builder '{builder}' orders paths by another score: "
        "leave the score out": not builder.by_probability,
        f"budget is {config.budget}, and the policy's times reach {most} rows: give at most that, "
        "or measure again": growth.rows > most,
    }
    for message, there in faults.items():
        if there:
            raise ValueError(message)


def _choose_widths(
    rows: int, config: DecodeConfig, varies: bool, often_empty: bool
) -> tuple[int, ...]:
    """Choose the numbers of rows that verification is compiled for.

    A policy names its own, or gets powers of two. Without a policy there is one width, the
    capacity, if every tree is full. Filters (top-k, top-p, min-p) and fan-out rules make some trees
    small, so a quarter of the capacity is compiled too.

    Args:
      rows: capacity of the tree.
      config: the call's.
      varies: whether the builder's trees vary in size.
      often_empty: whether the drafter often proposes nothing.
    """
    if config.policy is not None:
        widths = config.policy.widths or powers_of_two(rows)
        return (*(width for width in widths if width < rows), rows)
    sampling = config.sampling
    small = varies or (not often_empty and (sampling.top_k or sampling.top_p or sampling.min_p))
    widths = (-(-rows // 4), rows) if small and rows >= 8 else (rows,)
    return (1, *widths) if often_empty else widths


def _choose_blocks(policy: Functions | None, largest: int) -> tuple[int, ...]:
    """Choose the block sizes that drafting is compiled for, at most `largest`.

    A policy that chooses block sizes names them, or gets powers of two.
    """
    if policy is None or policy.act.block is None:
        return ()
    sizes = policy.blocks or (*powers_of_two(largest), largest)
    return tuple(sorted({min(max(size, 2), largest) for size in sizes}))
