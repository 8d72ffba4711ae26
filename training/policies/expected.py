"""Fit the regression that predicts committed tokens by number of verified rows, from a record.

    python -m jaxspec.training.policies.expected --record eagle3.npz --table times.json \\
      --out policies/regression

The policy is `jaxspec.policies.learned.regression`. The record comes from `training.rl.record`; the
table comes from `jaxspec calibrate` or, with `--depth`, from `training.rl.times`. Every position of
the record is an example, whether or not a decode would start a round there. Every fourth prompt of
a domain is held out.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.costs.files import load_costs
from jaxspec.policies.learned.ltd_features import pool_size
from jaxspec.policies.learned.networks import Layer, init_layers, mlp
from jaxspec.policies.learned.regression import (
    make_regression,
    predict_committed,
    regression_features,
)
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_rows import ROW_COSTS
from jaxspec.tuner.calibrate.by_steps import STEP_COSTS

from ..replay.records import Record, load_record, split_records
from ..run.command import one_line_errors


@dataclasses.dataclass
class RegressionOptions:
    """Options of the fit.

    Attributes:
      record: recorded rounds.
      table: measured round times.
      out: folder of the policy.
      depth: draft steps of the rounds, for times of `training.rl.times`; None takes all recorded
        steps.
      hidden: units of a hidden layer; 0 fits a ridge regression in closed form.
      ridge: weight of the squared coefficients; the mean squared error has weight 1.
      steps: of Adam, each on all positions; for a hidden layer only.
      rate: initial learning rate of Adam; it decays to 0 along a cosine.
      seed: of initial weights.
    """

    record: Path
    table: Path
    out: Path
    depth: int | None = None
    hidden: int = 0
    ridge: float = 1e-3
    steps: int = 500
    rate: float = 3e-3
    seed: int = 0


def make_regression_examples(record: Record, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Make (features float32 [N, F], committed tokens float32 [N, sizes]) from a record.

    Args:
      record: recorded rounds.
      steps: draft steps of the trees.
    """
    order, rows = record.order, record.sizes[-1] - 1
    if record.header["sees"] == "pool":
        # Candidates of these steps in the order of rows: a stable sort brings them to the front.
        later = order >= pool_size(record.header["width"], steps)
        order = np.take_along_axis(order, np.argsort(later, axis=1, kind="stable"), axis=1)
        rows = min(rows, pool_size(record.header["width"], steps))
    best = np.take_along_axis(record.scores.astype(np.float32), order[:, :rows], axis=1)
    x = regression_features(jnp.asarray(best), jnp.asarray(record.context), best.shape[1])
    return np.asarray(x), record.committed[:, steps].astype(np.float32)


def fit_ridge(x: np.ndarray, y: np.ndarray, ridge: float) -> list[Layer]:
    """Fit one layer by ridge regression on centred features, with penalty `ridge`."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    mean, centre = x.mean(0), y.mean(0)
    kernel = np.linalg.solve(
        (x - mean).T @ (x - mean) / len(x) + ridge * np.eye(x.shape[1]),
        (x - mean).T @ (y - centre) / len(x),
    )
    return [
        {
            "kernel": jnp.asarray(kernel, jnp.float32),
            "bias": jnp.asarray(centre - mean @ kernel, jnp.float32),
        }
    ]


def fit_network(x: np.ndarray, y: np.ndarray, options: RegressionOptions) -> list[Layer]:
    """Train two layers with Adam; the output bias starts at the mean."""
    layers = init_layers(jax.random.key(options.seed), (x.shape[1], options.hidden, y.shape[1]))
    layers[-1]["bias"] = jnp.asarray(y.mean(0))
    optimizer = optax.adam(optax.cosine_decay_schedule(options.rate, options.steps))

    def loss(layers):
        size = sum(jnp.sum(layer["kernel"] ** 2) for layer in layers)
        return jnp.mean((mlp(layers, x, "relu") - y) ** 2) + options.ridge * size / x.shape[1]

    @functools.partial(jax.jit, donate_argnums=0)
    def run(carry):
        def step(_, carry):
            layers, state = carry
            updates, state = optimizer.update(jax.grad(loss)(layers), state)
            return optax.apply_updates(layers, updates), state

        return jax.lax.fori_loop(0, options.steps, step, carry)

    return run((layers, optimizer.init(layers)))[0]


def train_regression(options: RegressionOptions) -> tuple[Policy, dict]:
    """Fit and save the policy.

    Returns:
      (the policy, its figures on held-out positions).

    Raises:
      ValueError, FileNotFoundError: the record or the table is unusable.
    """
    record = load_record(options.record)
    steps = record.steps if options.depth is None else options.depth
    if not 0 <= steps <= record.steps:
        raise ValueError(
            f"depth is {steps}: give 0 to {record.steps} draft steps, which the record holds"
        )
    costs = load_costs(options.table)
    training, held_out = (make_regression_examples(part, steps) for part in split_records(record))
    layers = (
        fit_network(*training, options) if options.hidden else fit_ridge(*training, options.ridge)
    )
    taken = 0 if options.depth is None and costs.step is None else steps
    scale = record.header["score_scale"]
    policy = make_regression(costs, layers, record.sizes, steps=taken, score_scale=scale)
    x, y = held_out
    error = np.asarray(predict_committed(layers, x)) - y
    spread = y - training[1].mean(0)
    report = {
        "positions": len(training[1]),
        "held_out": len(y),
        "sizes": list(record.sizes),
        "mean_committed": y.mean(0).round(3).tolist(),
        # 1 - (mean squared error) / (mean squared error of predicting the training mean).
        "explained": (1 - (error**2).mean(0) / np.maximum((spread**2).mean(0), 1e-9))
        .round(3)
        .tolist(),
    }
    about = {name: record.header[name] for name in ("model", "drafter", "builder")}
    if "target" in costs.about:
        about["target"] = costs.about["target"]
    made_with = ROW_COSTS if costs.step is None else STEP_COSTS
    about |= {"steps": steps, "device": jax.devices()[0].device_kind}
    about[made_with] = costs.fingerprint
    save_policy(policy, options.out, about)
    return policy, report


if __name__ == "__main__":
    import json

    import tyro

    with one_line_errors():
        print(json.dumps(train_regression(tyro.cli(RegressionOptions))[1], indent=1))
