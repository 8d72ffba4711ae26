"""The training loop of every recipe: jitted steps, evaluation, checkpoints, exact resumption.

A run is a pure function of the initial parameters, the optimizer, the batch function and the number
of steps. Batches depend only on the step, so a run that was killed continues from its last
checkpoint to the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxspec.core.runtime.processes import HostOptions
from jaxspec.round.quick_jit import QuickJit

from . import sharding
from .checkpoints import Checkpoints, TrainingError
from .metrics import RunLog, count_tokens
from .stopping import StopRequest, catch_stop


@dataclasses.dataclass
class LoopOptions:
    """Options of the loop.

    Attributes:
      run: folder of the run: checkpoints, metrics.jsonl and tensorboard.
      steps: total optimizer steps; the learning rate reaches 0 at the last.
      save_every: steps between checkpoints; one is always written at the end.
      eval_every: steps between evaluations; one is always made at the end.
      parts: equal parts of a batch whose gradients are accumulated, to bound memory. The result is
        that of the whole batch.
      data: devices over which a batch is split, in addition to fsdp. Leave both at 1 on a CPU: host
        devices share its cores, gain little, and can block each other on a busy machine.
      fsdp: devices over which parameters and optimizer state are split, and the batch too.
      shard_frozen: split the frozen target over `fsdp` too.
      hosts: see `jaxspec.core.runtime.processes.HostOptions`.
      stop_after: stop cleanly after this step, to continue later.
      changed: options that may differ from those of the checkpoint to continue from, for example
        `steps` to plan anew.
    """

    run: Path
    steps: int = 640
    save_every: int = 100
    eval_every: int = 160
    parts: int = 4
    data: int = 1
    fsdp: int = 1
    shard_frozen: bool = False
    hosts: HostOptions = dataclasses.field(default_factory=HostOptions)
    stop_after: int | None = None
    changed: tuple[str, ...] = ()


class TrainState(NamedTuple):
    """The carry of a training step, on the devices.

    Attributes:
      params: float32 master weights.
      opt_state: state of the optimizer.
      good: int32 [], number of steps before the first whose loss or gradient was not finite.
      finite: bool [], whether loss and gradient were finite in all steps.
    """

    params: object
    opt_state: object
    good: jax.Array
    finite: jax.Array


def make_step(
    loss: Callable, optimizer: optax.GradientTransformation, parts: int, mesh, shardings: TrainState
) -> Callable:
    """Make `step(state, frozen, batch) -> (state, sums)`, one compiled program.

    It donates `state`.

    Args:
      loss: see `fit`.
      optimizer: optax transformation.
      parts: equal parts of the batch, processed one after the other.
      mesh: see `training.run.sharding.make_mesh`.
      shardings: shardings of the state's leaves.

    Returns:
      The step. `sums` holds the loss's (numerator, denominator) pairs over the whole batch and the
      norm of the gradient.
    """

    def objective(params, frozen, batch):
        sums = loss(params, frozen, batch)
        return sums["loss"][0], sums

    def gradient_of(params, frozen, batch):
        gradient, sums = jax.grad(objective, has_aux=True)(params, frozen, batch)
        return jax.lax.with_sharding_constraint(gradient, shardings.params), sums

    def accumulate(params, frozen, batch):
        if parts == 1:
            return gradient_of(params, frozen, batch)

        def add(total, part):
            gradient, sums = gradient_of(params, frozen, part)
            return jax.tree.map(jnp.add, total, gradient), sums

        start = jax.tree.map(jnp.zeros_like, params)
        total, sums = jax.lax.scan(add, start, sharding.split_parts(batch, parts, mesh))
        return total, jax.tree.map(lambda values: values.sum(0), sums)

    def step(state, frozen, batch):
        gradient, sums = accumulate(state.params, frozen, batch)
        weight = sums["loss"][1]
        gradient = jax.tree.map(lambda leaf: leaf / jnp.where(weight > 0, weight, 1), gradient)
        norm = optax.tree.norm(gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        finite = state.finite & jnp.isfinite(sums["loss"][0]) & jnp.isfinite(norm)
        state = TrainState(
            optax.apply_updates(state.params, updates), opt_state, state.good + finite, finite
        )
        return state, sums | {"grad_norm": (norm, jnp.ones_like(norm))}

    places = (shardings, sharding.replicated(mesh))
    return QuickJit(step, donate_argnums=0, out_shardings=places)


def fit(
    params,
    optimizer,
    loss,
    batches,
    options: LoopOptions,
    recipe: dict,
    *,
    frozen=None,
    evaluate=None,
):
    """Train to `options.steps`, from the newest checkpoint in `options.run` if there is one.

    Args:
      params: pytree of float32 arrays at step 0, the same on every process.
      optimizer: optax transformation, see `training.run.optimizer.make_optimizer`.
      loss: `loss(params, frozen, batch) -> {name: (numerator float32 [], denominator float32 [])}`,
        jit-able, with "loss" among the names. It returns sums over the batch rather than means, so
        that parts, devices and one large batch give the same result. The gradient is that of the
        sum of numerators of "loss", divided by the sum of its denominators.
      batches: `batches(step) -> pytree of numpy arrays` with the batch on axis 0. It depends only
        on the step and is the same on every process; each copies only its own rows to its devices.
      options: see `LoopOptions`.
      recipe: JSON-able description of everything else that decides the result. A checkpoint of
        another recipe is refused.
      frozen: pytree passed to the loss as an argument of the compiled step, for example the
        target's variables; or None.
      evaluate: `evaluate(params) -> dict of floats`, or None. It gets arrays on the devices, or
        numpy arrays if there are several processes, each of which evaluates.

    Returns:
      The parameters after the last step (numpy leaves).

    Raises:
      TrainingError: the loss or a weight is no longer finite, or a checkpoint cannot be read or
        written; the message names the last good checkpoint. Or SIGTERM came: the step that ran is
        finished and saved.
      KeyboardInterrupt: after Ctrl-C, when the step that ran is finished and saved.
    """
    mesh = sharding.make_mesh(options.data, options.fsdp)
    checkpoints = Checkpoints(options.run / "checkpoints", recipe, options.changed)
    first, state, shardings = _start(params, optimizer, checkpoints, mesh)
    frozen = sharding.put(
        frozen,
        sharding.fully_sharded(mesh, frozen) if options.shard_frozen else sharding.replicated(mesh),
    )
    step_fn = make_step(loss, optimizer, options.parts, mesh, shardings)
    log = RunLog(options.run, first, options.steps)
    last = min(options.steps, options.stop_after or options.steps)
    with contextlib.closing(checkpoints), contextlib.closing(log), catch_stop() as stop:
        for done in range(first + 1, last + 1):
            try:
                batch = batches(done - 1)
                sharding.check_rows(batch, options.parts, mesh)
                state, sums = step_fn(state, frozen, sharding.put(batch, sharding.over_batch(mesh)))
                stop.catch(signal.SIGINT)
                log.advance(count_tokens(batch))
                asked = stop.number is not None
                _report(done, state, sums, options, checkpoints, log, evaluate, saves=asked)
            except OSError as error:  # a full disk, or data that went away
                message = f"stopped at step {done}: {error}; last good checkpoint: {checkpoints.last_good()}"
                raise TrainingError(message) from error
            if asked and done < last:
                _end(stop, done)
        return sharding.to_host(state.params)


def _report(
    done: int,
    state: TrainState,
    sums,
    options: LoopOptions,
    checkpoints: Checkpoints,
    log: RunLog,
    evaluate,
    saves: bool,
) -> None:
    """Log, evaluate and save if it is due after step `done`; only then wait for the devices.

    Args:
      saves: whether it is due to save in any case.
    """
    saves = saves or done % options.save_every == 0 or done in (options.steps, options.stop_after)
    evaluates = evaluate and (done % options.eval_every == 0 or done == options.steps)
    if done % 10 == 0 or saves or evaluates:
        _check_finite(state, checkpoints)
        log.training(done, _means(sums))
    if evaluates:
        log.evaluation(
            done,
            evaluate(state.params if jax.process_count() == 1 else sharding.to_host(state.params)),
        )
    if saves:
        _save(done, state, checkpoints)
    if evaluates or saves:
        log.rest()


def _end(stop: StopRequest, done: int) -> None:
    """End a run that was asked to stop, after step `done` is saved."""
    if stop.is_keyboard:
        raise KeyboardInterrupt
    raise TrainingError(
        f"stopped by SIGTERM after step {done}, which is saved: the same command goes on from there"
    )


def _start(params, optimizer, checkpoints: Checkpoints, mesh) -> tuple[int, TrainState, TrainState]:
    """Return the number of steps done, the state after them, and its shardings."""
    shapes = {
        "params": jax.eval_shape(lambda: params),
        "opt_state": jax.eval_shape(optimizer.init, params),
    }
    places = sharding.fully_sharded(mesh, shapes)
    whole = sharding.replicated(mesh)
    abstract = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places
    )
    first, saved = checkpoints.restore(abstract) or (0, None)
    if saved is None:
        params = sharding.put(params, places["params"], may_alias=False)
        saved = {
            "params": params,
            "opt_state": jax.jit(optimizer.init, out_shardings=places["opt_state"])(params),
        }
    good, finite = sharding.put((jnp.int32(first), jnp.bool(True)), whole, may_alias=False)
    return (
        first,
        TrainState(saved["params"], saved["opt_state"], good, finite),
        TrainState(places["params"], places["opt_state"], whole, whole),
    )


def _means(sums) -> dict[str, float]:
    """Divide numerators by denominators; leave out metrics without weight."""
    pairs = {
        name: (float(numerator), float(denominator))
        for name, (numerator, denominator) in sums.items()
    }
    return {
        name: numerator / denominator
        for name, (numerator, denominator) in pairs.items()
        if denominator
    }


def _check_finite(state: TrainState, checkpoints: Checkpoints) -> None:
    if not state.finite:
        raise TrainingError(
            f"the loss or its gradient is not finite at step {int(state.good) + 1}: lower the "
            f"learning rate, or check that batch; last good checkpoint: {checkpoints.last_good()}"
        )


@jax.jit
def _all_finite(tree) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def _save(step: int, state: TrainState, checkpoints: Checkpoints) -> None:
    saved = {"params": state.params, "opt_state": state.opt_state}
    if not _all_finite(saved):
        raise TrainingError(
            f"a weight is not finite after step {step}, which is not saved: lower the learning "
            f"rate; last good checkpoint: {checkpoints.last_good()}"
        )
    checkpoints.save(step, saved)
