"""Inputs and state of BASTION's controller on the device."""

from __future__ import annotations

import flax.struct
import jax
import numpy as np

from jaxspec.costs.row_costs import RowCosts
from jaxspec.policies.bastion.pauses import PauseState, init_pauses
from jaxspec.policies.bastion.score_correction import ScoreState, init_scores
from jaxspec.policies.registry import tagged


@tagged("bastion-inputs")
class ControllerInputs(flax.struct.PyTreeNode):
    """The controls that rounds read.

    Attributes:
      costs: round costs, measured or of the roofline.
      factor: float32 [], correction of the costs of verification, see
        `roofline_fit.correct_running`.
      rows: int32 [], rows to verify in every round, for measurements; 0 lets the rule choose, and
        -1 decodes autoregressively.
      ema: float32 [], weight of the measured time of a verification in `factor`; 0 keeps `factor`.
      rate: float32 [], weight of a decode's measured time in `costs`, see `online_costs`; 0 keeps
        `costs`.
    """

    costs: RowCosts
    factor: jax.Array
    rows: jax.Array
    ema: jax.Array
    rate: jax.Array


@tagged("bastion-state")
class ControllerState(flax.struct.PyTreeNode):
    """The state that rounds write; a later decode may start from it.

    Attributes:
      scores: correction of path scores.
      pauses: state of the pauses.
      rounds: int32 [], all rounds of the batch.
      drafted: int32 [], rounds that drafted.
      predicted: float32 [], predicted seconds of all rounds.
      worth: float32 [], expected committed tokens of all rounds.
      sizes: int32 [N + 1], rounds by verified rows; entry 0 counts rounds that did not draft.
      last: float32 [2], predicted seconds of drafting and of verification in the last round,
        without the factor; written only if the host observes each round.
    """

    scores: ScoreState
    pauses: PauseState
    rounds: jax.Array
    drafted: jax.Array
    predicted: jax.Array
    worth: jax.Array
    sizes: jax.Array
    last: jax.Array


def init_controller(depth: int, rows: int) -> ControllerState:
    """Make the state before the first round, for trees of up to `rows` rows and `depth` levels."""
    zero, count = np.float32(0), np.int32(0)
    return ControllerState(
        scores=init_scores(depth),
        pauses=init_pauses(min(rows, depth + 1)),
        rounds=count,
        drafted=count,
        predicted=zero,
        worth=zero,
        sizes=np.zeros(rows + 1, np.int32),
        last=np.zeros(2, np.float32),
    )
