"""The controller of BASTION on the device: how many rows of the round's tree to verify, and whether
to draft at all.

Zheng et al. 2026, section 4: grow the best-first tree until the next node no longer pays for
itself. Here the tree is built once to its capacity, and the size is chosen over all prefixes of its
rows from the expected committed tokens of each and the measured time of the compiled width that
would hold it. Beyond the paper: scores corrected by what was accepted, and rounds of plain decoding
while drafting does not pay.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Accepted, Tree
from jaxspec.costs.calibration import running_correction
from jaxspec.costs.latency_table import LatencyTable, bucket_of
from jaxspec.policies.bastion.pauses import PauseState, init_pauses, paid, resumed, waited
from jaxspec.policies.bastion.rules import RULES
from jaxspec.policies.bastion.scores import ScoreState, corrected, init_scores, observed, refreshed
from jaxspec.policies.protocol import Acts, Functions, Observation, Outcome, Policy, Settings

# Rounds between two looks at whether the counts call for another correction of scores.
REFRESH = 16


@dataclasses.dataclass(frozen=True)
class ControllerSettings(Settings):
    """Static choices of the controller.

    Attributes:
      rule: `best` (arg max over all sizes), `bastion-paper` (first decrease), `bastion-code` (the
        released constants), or `fixed`, which verifies `Controls.rows`: for measuring.
      corrected: learn what path scores are worth from what is accepted; False takes raw scores.
      pauses: decode plainly while drafting does not pay.
    """

    rule: str = "best"
    corrected: bool = True
    pauses: bool = True

    def __post_init__(self):
        if self.rule not in (*RULES, "fixed"):
            raise ValueError(
                f"unknown rule {self.rule!r}: choose one of {', '.join((*RULES, 'fixed'))}"
            )

    def functions(self) -> Functions:
        return _functions(self)

    def clocked(
        self, controls: Controls, before: ControlState, after: ControlState, seconds: float
    ) -> Controls:
        """BASTION's EMA, fed with whole calls: what their rounds took against what was predicted of
        them.
        """
        rate, factor = float(controls.running), float(controls.factor)
        predicted = float(after.predicted) - float(before.predicted)
        if not rate or not predicted > 0:
            return controls
        factor = running_correction([seconds], [predicted / factor], rate, factor)[-1]
        return controls.replace(factor=jnp.float32(factor))


@flax.struct.dataclass
class Controls:
    """What the rounds of a call read.

    Attributes:
      table: measured round times.
      factor: float32 [], correction of the times, see `calibration.running_correction`.
      rows: int32 [], of the rule `fixed`; 0 decodes plainly.
      running: float32 [], weight of a call's measured time in `factor`; 0 leaves `factor` as it is.
    """

    table: LatencyTable
    factor: jax.Array
    rows: jax.Array
    running: jax.Array


@flax.struct.dataclass
class ControlState:
    """What the rounds of a call write; a later call may start from it.

    Attributes:
      scores: see `ScoreState`.
      pauses: see `PauseState`.
      rounds: int32 [], all rounds of the batch; drafted: int32 [], those that drafted.
      predicted: float32 [], the predicted seconds of all rounds. worth: float32 [], expected
        committed tokens of all rounds.
      sizes: int32 [N + 1], rounds by the rows that were verified; entry 0 counts rounds that did
        not draft.
    """

    scores: ScoreState
    pauses: PauseState
    rounds: jax.Array
    drafted: jax.Array
    predicted: jax.Array
    worth: jax.Array
    sizes: jax.Array


def make_policy(
    table: LatencyTable,
    rule: str = "best",
    *,
    corrected: bool | None = None,
    pauses: bool | None = None,
    rows: int = 0,
    running: float = 0.0,
) -> Policy:
    """A controller over round times; arguments as of `ControllerSettings`.

    Args:
      corrected, pauses: None: as the rule's source has it, and BASTION has neither.
      rows: for the rule `fixed`.
      running: weight of every call's measured time in a running correction of the predicted ones,
        which goes on with `Output.policy`. Over a measured or calibrated table this is BASTION's
        "EMA + calibration", over the bare `latency.roofline_table` its "EMA"; its golden traces
        have weights of 0.1 and 0.2.

    Raises:
      ValueError: unknown rule, or `running` not in 0 to 1.
    """
    if not 0 <= running <= 1:
        raise ValueError(
            f"running is {running}: give a weight from 0, no correction, to 1, the last call alone"
        )
    theirs = rule.startswith("bastion")
    corrected, pauses = (not theirs if given is None else given for given in (corrected, pauses))
    settings = ControllerSettings(table.widths, rule, corrected, pauses)
    return Policy(settings, Controls(table, jnp.float32(1), jnp.int32(rows), jnp.float32(running)))


@functools.lru_cache
def _functions(settings: ControllerSettings) -> Functions:
    acts = Acts(draft=functools.partial(drafts, settings), rows=functools.partial(choose, settings))
    observes = functools.partial(observe, settings)
    return Functions(
        lambda shape: init_control(shape.depth, shape.rows), acts, observes, resume=_resumed
    )


def init_control(depth: int, rows: int) -> ControlState:
    """The state before anything was seen, of trees up to `rows` rows and `depth` deep."""
    zero, count = jnp.float32(0), jnp.int32(0)
    return ControlState(
        scores=init_scores(depth),
        pauses=init_pauses(),
        rounds=count,
        drafted=count,
        predicted=zero,
        worth=zero,
        sizes=jnp.zeros(rows + 1, jnp.int32),
    )


def _resumed(state: ControlState) -> ControlState:
    return state.replace(pauses=resumed(state.pauses))


def drafts(
    settings: ControllerSettings, controls: Controls, state: ControlState, observation: Observation
) -> jax.Array:
    """Whether the round drafts: bool []."""
    if settings.rule == "fixed":
        return controls.rows > 0
    return state.pauses.left == 0 if settings.pauses else jnp.bool_(True)


def choose(
    settings: ControllerSettings, controls: Controls, state: ControlState, observation: Observation
) -> jax.Array:
    """The number of rows int32 [] that pays best for the batch, whose sequences are verified in one
    pass.
    """
    tree, live = observation.tree, observation.live
    rows = tree.token.shape[1]
    if settings.rule == "fixed":
        return jnp.clip(controls.rows, 1, rows)
    draft, verify = _seconds(controls, observation.context, live)
    cost = (draft + verify)[bucket_of(rows, controls.table.widths)]
    return RULES[settings.rule](
        jnp.cumsum(jnp.sum(_values(settings, state, tree, live), axis=0)), cost
    )


def observe(
    settings: ControllerSettings, controls: Controls, state: ControlState, outcome: Outcome
) -> ControlState:
    """The state after a round."""
    draft, verify = _seconds(controls, outcome.context, outcome.live)

    def drafted():
        return _drafted(settings, controls, state, outcome, draft + verify, verify[0])

    def plainly():
        return state.replace(
            predicted=state.predicted + verify[0],
            worth=state.worth + jnp.sum(outcome.live),
            sizes=state.sizes.at[0].add(1),
            pauses=waited(state.pauses),
        )

    state = jax.lax.cond(outcome.drafted, drafted, plainly)
    return state.replace(rounds=state.rounds + 1)


def _drafted(
    settings, controls: Controls, state: ControlState, outcome: Outcome, cost, plain
) -> ControlState:
    """The state after a round that drafted; `cost` float32 [W] of every width, `plain` of plain
    decoding.
    """
    tree, live = outcome.tree, outcome.live
    size = jnp.max(outcome.rows)
    seconds = cost[jnp.asarray(bucket_of(tree.token.shape[1], controls.table.widths))[size - 1]]
    state = state.replace(
        drafted=state.drafted + 1,
        predicted=state.predicted + seconds,
        worth=state.worth + jnp.sum(_values(settings, state, tree, live)),
        sizes=state.sizes.at[size].add(1),
    )
    if settings.corrected:
        seen = jnp.where(live[:, None], tree.logprob, -jnp.inf)
        scores = observed(state.scores, seen, tree.depth, _on_path(tree, outcome.accepted))
        due = state.drafted % REFRESH == 0
        state = state.replace(scores=jax.lax.cond(due, refreshed, lambda scores: scores, scores))
    if settings.pauses and settings.rule != "fixed":
        committed = jnp.sum(jnp.where(live, outcome.accepted.count, 0)) / jnp.maximum(
            jnp.sum(live), 1
        )
        state = state.replace(pauses=paid(state.pauses, committed - seconds / plain))
    return state


def _values(
    settings: ControllerSettings, state: ControlState, tree: Tree, live: jax.Array
) -> jax.Array:
    """Expected committed tokens float32 [B, N] of each row; a finished sequence's are worth
    nothing.
    """
    value = (
        corrected(state.scores, tree.logprob, tree.depth)
        if settings.corrected
        else jnp.exp(tree.logprob)
    )
    return jnp.where(live[:, None], value, 0.0)


def _seconds(controls: Controls, context, live) -> tuple[jax.Array, jax.Array]:
    draft, verify = controls.table.at(jnp.max(jnp.where(live, context, 0)))
    # Whole calls are timed: a machine that runs slower than when its table was measured does so in
    # all parts of a round.
    return controls.factor * draft, controls.factor * verify


def _on_path(tree: Tree, accepted: Accepted) -> jax.Array:
    """bool [B, N], drafted rows whose token was committed."""
    rows, slot = tree.token.shape[1], jnp.arange(accepted.path.shape[1])
    row = jnp.where((slot > 0) & (slot < accepted.count[:, None]), accepted.path, rows)
    return (row[..., None] == jnp.arange(rows)).any(1)
