"""BASTION's controller on the device: choose the rows to verify, and whether to draft at all.

Oh, Cao et al. 2026 (arXiv 2605.29727), section 4, grow the best-first tree until the next node
costs more than it gains. Here the tree is built once at its capacity, and the size is chosen among
all prefixes of its rows, by the expected committed tokens of the prefix and the time of the
smallest compiled width that holds it. Two things go beyond the paper: scores are corrected by past
acceptance, and rounds decode autoregressively while drafting does not pay.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.core.state import Accepted, Tree
from jaxspec.costs.roofline_fit import EMA, correct_running
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.costs.row_costs import width_indices
from jaxspec.policies.bastion.controller_state import (
    ControllerInputs,
    ControllerState,
    init_controller,
)
from jaxspec.policies.bastion.online_costs import correct_row_costs
from jaxspec.policies.bastion.pauses import (
    count_pause,
    drafting_pays,
    record_gain,
    resume_pauses,
)
from jaxspec.policies.bastion.score_correction import (
    correct_scores,
    count_verified_nodes,
    refresh_ratios,
)
from jaxspec.policies.bastion.size_rules import SIZE_RULES
from jaxspec.policies.protocol import Acts, Functions, Observation, Outcome, Policy, PolicyConfig
from jaxspec.policies.registry import register, tagged

# Rounds between two updates of the correction of scores.
REFRESH = 16
# Least share of verification in the time of a round, for costs that overrate drafting.
LEAST_SHARE = 0.1
# Suffix of a rule's name for BASTION's running correction.
EMA_SUFFIX = "+ema"
# The score temperature of BASTION's released code: scores are the drafter's raw probabilities.
RAW_SCORES = 1.0


@tagged("bastion")
@dataclasses.dataclass(frozen=True)
class ControllerConfig(PolicyConfig):
    """Static choices of the controller.

    Attributes:
      rule: `best` (arg max over all sizes), `bastion-paper` (algorithm 1 as printed),
        `bastion-first-decrease` (proposition 2.4) or `bastion-code` (the released constants).
      corrected: correct path scores by what is accepted; False uses raw scores.
      pauses: decode autoregressively while drafting does not pay.
    """

    rule: str = "best"
    corrected: bool = True
    pauses: bool = True
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        if self.rule not in SIZE_RULES:
            raise ValueError(f"unknown rule {self.rule!r}: {choose_one(self.rule, SIZE_RULES)}")

    def functions(self) -> Functions:
        return _functions(self)

    def observe_seconds(
        self,
        controls: ControllerInputs,
        before: ControllerState,
        after: ControllerState,
        seconds: float,
    ) -> ControllerInputs:
        """Correct the costs by the measured time of rounds.

        `ema` is the rate of BASTION's EMA of one common factor of verification, after each round,
        `rate` that of `correct_row_costs`, which corrects each width.
        """
        predicted = float(after.predicted) - float(before.predicted)
        if not predicted > 0:
            return controls
        ema, factor = float(controls.ema), float(controls.factor)
        if ema and int(after.rounds) - int(before.rounds) == 1:
            # The paper observes the verification; drafting takes what the costs say.
            drafting, model = map(float, after.last)
            observed = max(seconds - drafting, LEAST_SHARE * seconds)
            factor = correct_running([observed], [model], ema, factor)[-1]
            controls = controls.replace(factor=np.float32(factor))
        if float(controls.rate):
            sizes = np.asarray(after.sizes) - np.asarray(before.sizes)
            costs = correct_row_costs(
                controls.costs, sizes, predicted, seconds, float(controls.rate)
            )
            controls = controls.replace(costs=costs)
        return controls


def make_bastion(
    costs: RoundCosts,
    rule: str = "best",
    *,
    corrected: bool | None = None,
    pauses: bool | None = None,
    rows: int = 0,
    ema: float = 0.0,
    rate: float = 0.0,
) -> Policy:
    """Make BASTION's controller from round costs.

    BASTION's rules, whose names begin with `bastion`, score paths as its released code does: by the
    drafter's raw probabilities, and without a correction. They ask for a tree of a score temperature
    of 1 too. The rule `best` reads the scores of the tree, which it corrects.

    Args:
      costs: measured by `jaxspec.tuner.calibrate.by_rows`, or a roofline, bare or fitted, by
        `jaxspec.tuner.calibrate.by_roofline`.
      rule, corrected, pauses: see `ControllerConfig`. If `corrected` or `pauses` is None, it is on
        for the rule `best` and off for BASTION's rules, which have neither.
      rows: see `ControllerInputs`.
      ema: weight of each measured time in BASTION's running correction, which continues with
        `Output.policy`: after every verification c <- (1 - ema) c + ema * observed / predicted, and
        c times the costs of verification is the next prediction. With the bare roofline this is the
        paper's "EMA", with fitted costs its "EMA + calibration"; `+ema` in a policy's name is a
        weight of 0.2. The host waits for every round then.
      rate: weight of each decode's measured time in a correction of the costs of each width, see
        `online_costs`.

    Raises:
      ValueError: the rule is unknown, or `ema` or `rate` is not in 0 to 1.
    """
    for name, weight in (("ema", ema), ("rate", rate)):
        if not 0 <= weight <= 1:
            raise ValueError(
                f"{name} is {weight}: give a weight from 0, no correction, to 1, the last time only"
            )
    ours = not rule.startswith("bastion")
    config = ControllerConfig(
        costs.compiled,
        rule,
        corrected=ours if corrected is None else corrected,
        pauses=ours if pauses is None else pauses,
        score_scale=None if ours else RAW_SCORES,
        score_temperature=None if ours else RAW_SCORES,
        each_round=ema > 0,
    )
    inputs = ControllerInputs(
        costs.by_rows(),
        np.float32(1),
        np.int32(rows),
        np.float32(ema),
        np.float32(rate),
    )
    return Policy(config, inputs)


for _rule in SIZE_RULES:
    register(_rule, functools.partial(make_bastion, rule=_rule), by_costs=True)
    _corrected = functools.partial(make_bastion, rule=_rule, ema=EMA)
    register(_rule + EMA_SUFFIX, _corrected, by_costs=True)


@functools.lru_cache
def _functions(config: ControllerConfig) -> Functions:
    acts = Acts(
        draft=functools.partial(decide_draft, config), rows=functools.partial(choose_size, config)
    )
    observes = functools.partial(observe_round, config)
    return Functions(
        lambda shape: init_controller(shape.depth, shape.rows), acts, observes, resume=_resumed
    )


def _resumed(state: ControllerState) -> ControllerState:
    return state.replace(pauses=resume_pauses(state.pauses))


def decide_draft(
    config: ControllerConfig,
    controls: ControllerInputs,
    state: ControllerState,
    observation: Observation,
) -> jax.Array:
    """Decide whether the round drafts: bool []."""
    chosen = drafting_pays(state.pauses) if config.pauses else jnp.bool_(True)
    return jnp.where(controls.rows == 0, chosen, controls.rows > 0)


def choose_size(
    config: ControllerConfig,
    controls: ControllerInputs,
    state: ControllerState,
    observation: Observation,
) -> jax.Array:
    """Choose the number of rows int32 [] that commits most tokens per second.

    One number serves the whole batch, because all sequences are verified in one pass.
    """
    tree, live = observation.tree, observation.live
    rows = tree.token.shape[1]
    draft, verify = _seconds(controls, observation.context, live)
    cost = (draft + verify)[width_indices(rows, controls.costs.widths)]
    worth = jnp.cumsum(jnp.sum(_values(config, state, tree, live), axis=0))
    chosen = SIZE_RULES[config.rule](worth, cost)
    return jnp.where(controls.rows == 0, chosen, jnp.clip(controls.rows, 1, rows))


def observe_round(
    config: ControllerConfig, controls: ControllerInputs, state: ControllerState, outcome: Outcome
) -> ControllerState:
    """Update the state after a round."""
    draft, verify = _seconds(controls, outcome.context, outcome.live)

    def after_drafting() -> ControllerState:
        return _drafted(config, controls, state, outcome, draft, verify)

    def after_plain() -> ControllerState:
        return _keep_last(config, controls, state, jnp.float32(0), verify[0]).replace(
            predicted=state.predicted + verify[0],
            worth=state.worth + jnp.sum(outcome.live),
            sizes=_count(state.sizes, 0),
            pauses=count_pause(state.pauses),
        )

    state = jax.lax.cond(outcome.drafted, after_drafting, after_plain)
    return state.replace(rounds=state.rounds + 1)


def _drafted(
    config: ControllerConfig,
    controls: ControllerInputs,
    state: ControllerState,
    outcome: Outcome,
    draft: jax.Array,
    verify: jax.Array,
) -> ControllerState:
    """Update the state after a round that drafted.

    Args:
      draft, verify: float32 [] and [W], predicted seconds of drafting, and of verification with
        every width; the first is a round of autoregressive decoding.
    """
    tree, live = outcome.tree, outcome.live
    size = jnp.max(outcome.rows)
    width = jnp.asarray(width_indices(tree.token.shape[1], controls.costs.widths))[size - 1]
    seconds = draft + verify[width]
    state = _keep_last(config, controls, state, draft, verify[width]).replace(
        drafted=state.drafted + 1,
        predicted=state.predicted + seconds,
        worth=state.worth + jnp.sum(_values(config, state, tree, live)),
        sizes=_count(state.sizes, size),
    )
    if config.corrected:
        seen = jnp.where(live[:, None], tree.logprob, -jnp.inf)
        scores = count_verified_nodes(
            state.scores, seen, tree.depth, _on_path(tree, outcome.accepted)
        )
        due = state.drafted % REFRESH == 0
        state = state.replace(
            scores=jax.lax.cond(due, refresh_ratios, lambda scores: scores, scores)
        )
    if config.pauses:
        committed = jnp.sum(jnp.where(live, outcome.accepted.count, 0)) / jnp.maximum(
            jnp.sum(live), 1
        )
        gained = committed - seconds / verify[0]
        state = state.replace(pauses=record_gain(state.pauses, gained))
    return state


def _count(sizes: jax.Array, size: jax.Array | int) -> jax.Array:
    """Count a round of `size` rows. On a CPU, XLA makes a loop of a scatter (`.at[size].add`)."""
    return sizes + (np.arange(sizes.shape[0]) == size)


def _keep_last(
    config: ControllerConfig,
    controls: ControllerInputs,
    state: ControllerState,
    draft: jax.Array,
    verify: jax.Array,
) -> ControllerState:
    """Keep the predicted seconds of a round, float32 [], for `observe_seconds`."""
    if not config.each_round:
        return state
    return state.replace(last=jnp.stack([draft, verify / controls.factor]))


def _values(
    config: ControllerConfig, state: ControllerState, tree: Tree, live: jax.Array
) -> jax.Array:
    """Compute each row's expected committed tokens: float32 [B, N], 0 for finished sequences."""
    value = (
        correct_scores(state.scores, tree.logprob, tree.depth)
        if config.corrected
        else jnp.exp(tree.logprob)
    )
    return jnp.where(live[:, None], value, 0.0)


def _seconds(
    controls: ControllerInputs, context: jax.Array, live: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Predict the seconds of drafting float32 [], and of verification float32 [W] by rows."""
    draft, verify = controls.costs.interpolate(jnp.max(jnp.where(live, context, 0)))
    return draft, controls.factor * verify


def _on_path(tree: Tree, accepted: Accepted) -> jax.Array:
    """Mark the drafted rows that were committed: bool [B, N]."""
    rows, slot = tree.token.shape[1], jnp.arange(accepted.path.shape[1])
    row = jnp.where((slot > 0) & (slot < accepted.count[:, None]), accepted.path, rows)
    return (row[..., None] == jnp.arange(rows)).any(1)
