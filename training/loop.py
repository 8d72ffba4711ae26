"""The training loop shared by every recipe: jitted steps, progress, evaluation, checkpoints and exact resumption.

A run is a pure function of (parameters at the start, optimizer, batch function, steps): batches depend on the step alone, so
a run that was killed continues from its last checkpoint to the same bits.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from training.checkpoints import Checkpoints


@dataclasses.dataclass
class LoopOptions:
    """Options of the loop.

    Attributes:
      run: folder of the run: checkpoints, and metrics.jsonl.
      steps: optimizer steps in all; the learning rate reaches 0 at the last.
      save_every: steps between checkpoints (one is always written at the end).
      eval_every: steps between evaluations (one is always made at the end).
      parts: equal parts of a batch whose gradients are averaged, to bound memory.
      devices: devices over which a batch is split. Leave it at 1 on a CPU: host devices that wait for each other's sums can
        block on a busy machine, and gain little.
      stop_after: stop cleanly after this step, to continue later.
      changed: options that may differ from those of the checkpoint to continue from, such as `steps` to plan anew.
    """

    run: Path
    steps: int = 640
    save_every: int = 100
    eval_every: int = 160
    parts: int = 4
    devices: int = 1
    stop_after: int | None = None
    changed: tuple[str, ...] = ()


def use_devices(count: int) -> jax.sharding.Mesh:
    """A mesh over the first `count` devices."""
    found = jax.device_count()
    if found < count:
        raise ValueError(f"{count} devices asked for, {found} found: lower --loop.devices")
    return jax.make_mesh((count,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:count])


def make_step(loss: Callable, optimizer: optax.GradientTransformation, parts: int, sharding=None) -> Callable:
    """`step(params, opt_state, batch) -> (params, opt_state, metrics)`; `loss(params, batch) -> (scalar, metrics)`.

    The gradient is the mean over `parts` equal parts of the batch, taken one after the other: small parts stay in cache.
    """

    def add_gradient(params, total, batch):
        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return jax.tree.map(lambda sum_, new: sum_ + new / parts, total, gradient), {"loss": value, **metrics}

    def update(params, opt_state, gradient):
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    add_gradient = jax.jit(add_gradient, donate_argnums=1)
    update = jax.jit(update, donate_argnums=(0, 1))

    def step(params, opt_state, batch):
        gradient, seen = jax.tree.map(jax.numpy.zeros_like, params), []
        for part in range(parts):
            piece = jax.device_put(jax.tree.map(lambda x, part=part: x[part::parts], batch), sharding)
            gradient, metrics = add_gradient(params, gradient, piece)
            seen.append(metrics)
        params, opt_state = update(params, opt_state, gradient)
        return params, opt_state, jax.tree.map(lambda *values: sum(values) / parts, *seen)

    return step


def fit(params, optimizer, loss, batches, options: LoopOptions, recipe: dict, evaluate=None):
    """Train to `options.steps`, from the newest checkpoint in `options.run` if there is one.

    Args:
      params: pytree at step 0.
      optimizer: optax transformation.
      loss: `loss(params, batch) -> (scalar, metrics)`, jit-able.
      batches: `batches(step) -> pytree of numpy arrays` with the batch on axis 0, a function of the step alone.
      options: see `LoopOptions`.
      recipe: JSON-able description of everything else that decides the result; a checkpoint of another is refused.
      evaluate: `evaluate(params) -> dict of floats`, or None.

    Returns:
      The parameters after the last step run (numpy leaves).
    """
    mesh = use_devices(options.devices)
    replicated, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("batch",)))
    checkpoints = Checkpoints(options.run / "checkpoints", recipe, options.changed)
    state = {"params": params, "opt_state": optimizer.init(params)}
    first, state = checkpoints.restore(state)
    state = jax.device_put(state, replicated)
    step_fn, log = make_step(loss, optimizer, options.parts, split), _Log(options.run, first)
    last = min(options.steps, options.stop_after or options.steps)
    bar = tqdm(range(first, last), initial=first, total=options.steps, mininterval=2.0, desc=options.run.name)
    for step in bar:
        params, opt_state, metrics = step_fn(state["params"], state["opt_state"], batches(step))
        state = {"params": params, "opt_state": opt_state}
        done = step + 1
        if done % 10 == 0 or done == last:
            metrics = log.write(done, metrics)
            bar.set_postfix({name: f"{value:.3f}" for name, value in metrics.items()}, refresh=False)
        if evaluate and (done % options.eval_every == 0 or done == options.steps):
            tqdm.write(f"step {done}: {log.write(done, evaluate(params))}")
        if done % options.save_every == 0 or done == last:
            checkpoints.save(done, state)
    checkpoints.close()
    return jax.tree.map(np.asarray, state["params"])


class _Log:
    """Appends {"step", "seconds", metrics} to metrics.jsonl; a resumed run drops what the killed one wrote too far."""

    def __init__(self, run: Path, first: int):
        run.mkdir(parents=True, exist_ok=True)
        self.path, self.start = run / "metrics.jsonl", time.monotonic()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= first]
        self.before = max((json.loads(line)["seconds"] for line in kept), default=0.0)
        self.path.write_text("".join(line + "\n" for line in kept))

    def write(self, step: int, metrics) -> dict[str, float]:
        metrics = {name: round(float(value), 5) for name, value in metrics.items()}
        seconds = round(self.before + time.monotonic() - self.start, 1)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "seconds": seconds, **metrics}) + "\n")
        return metrics
