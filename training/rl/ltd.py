"""Train LTD's two policies on recorded rounds: each alone, then in turns while the other is fixed.

    python -m jaxspec.training.rl.ltd --record eagle3.npz --times times.json --run runs/ltd \\
      --out policies/ltd --preset jaxspec

Run the same command again to continue a stopped run. The run's folder holds one folder per stage
(checkpoints, metrics, the policy after that stage), curves.png and results.json.
`jaxspec.policies.store.load_policy` reads `out`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.files import load_costs
from jaxspec.io.files.atomic import write_text
from jaxspec.io.fingerprint import fingerprint
from jaxspec.policies.learned.ltd import make_ltd
from jaxspec.policies.learned.ltd_features import OBSERVES
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_steps import STEP_COSTS

from ..replay.records import load_record
from ..run.checkpoints import Checkpoints
from ..run.command import one_line_errors
from ..run.metrics import RunLog
from . import replay
from .curves import plot_stages
from .live import load_texts, make_live
from .networks import init_actor_critic
from .ppo import learning_rate
from .problem import LtdProblem, data_of, environment_of, pose
from .stages import Learner, make_update, start


@dataclasses.dataclass
class LtdOptions:
    """Options of the training.

    Attributes:
      record: file of `training.rl.record`; a quarter of each domain's prompts is for validation.
      times: file of `training.rl.times`, for the same rounds.
      run: folder of the run.
      out: folder to write the policy to; None takes `policy` in the run's folder.
      preset: `ltd-paper`, `ltd-code` or `jaxspec`.
      reward: `throughput`, `acceptance`, `time` or `renewal`; None takes the preset's.
      observes: inputs of both networks: path log-probabilities (P), context length (L), depth (D),
        the drafter's hidden state (H) or the entropies of its distributions (E), which the record
        must keep.
      schedule: stages in order, each `size` or `depth`; None takes the preset's.
      size_actor: hidden layers of the size policy's network; None takes the preset's.
      depth_actor: hidden layers of the depth policy's network; None takes the preset's.
      share: share of the preset's environment steps to take.
      fixed_rows: rows verified during the first depth stage; None takes the preset's, or else the
        best constant's.
      parallel: parallel episodes; must divide the rollouts. None is 64, or 1 with `live`.
      live: prompt file, to train on real timed rounds instead of the record, one episode at a time.
        Checkpoints are still chosen on the record's validation prompts.
      validate_every: updates between validations; None takes a tenth of the stage's updates.
      save_every: updates between checkpoints; None takes `validate_every`.
      seed: of weights, episodes and minibatches.
    """

    record: Path
    times: Path
    run: Path
    out: Path | None = None
    preset: Literal["ltd-paper", "ltd-code", "jaxspec"] = "jaxspec"
    reward: Literal["throughput", "acceptance", "time", "renewal"] | None = None
    observes: Literal[*OBSERVES] = "P+D+L"
    schedule: tuple[Literal["size", "depth"], ...] | None = None
    size_actor: tuple[int, ...] | None = None
    depth_actor: tuple[int, ...] | None = None
    share: float = 1.0
    fixed_rows: int | None = None
    parallel: int | None = None
    live: Path | None = None
    validate_every: int | None = None
    save_every: int | None = None
    seed: int = 0


def train_ltd(options: LtdOptions) -> dict[str, dict[str, float]]:
    """Run the whole schedule and save the policy.

    Returns:
      Figures of the validation prompts by stage, and of `static` and `oracle`.

    Raises:
      ValueError, FileNotFoundError: see `pose`.
      TrainingError: a checkpoint was made with other options.
    """
    if options.live and set(options.observes) & set("HE"):
        raise ValueError(
            f"observes is {options.observes!r}: real rounds show no hidden states or entropies; "
            "leave --live out"
        )
    if options.parallel is None:
        options = dataclasses.replace(options, parallel=1 if options.live else 64)
    problem = pose(
        load_record(options.record),
        load_costs(options.times),
        options.preset,
        reward=options.reward,
        observes=options.observes,
        schedule=options.schedule,
        fixed_rows=options.fixed_rows,
        size_actor=options.size_actor,
        depth_actor=options.depth_actor,
    )
    validation_seconds = problem.validation.round_seconds(problem.times)
    params: dict[str, dict] = {}
    results = {
        "static": _figures(problem, validation_seconds, *problem.static),
        "oracle": _figures(
            problem, validation_seconds, *replay.oracle(problem.validation, validation_seconds)
        ),
    }
    names = [f"{number}-{kind}" for number, kind in enumerate(problem.preset.schedule)]
    for number, (name, kind) in enumerate(zip(names, problem.preset.schedule, strict=True)):
        others = {
            other: params[other]["actor"] for other in params if other != kind and kind in params
        }
        # A policy's first stage runs without the other policy. Later stages run with its latest
        # version.
        params[kind] = _stage(
            problem, options, number, name, kind, others, params.get(kind), validation_seconds
        )
        layers = {one: params[one]["actor"] for one in params}
        results[name] = _figures(problem, validation_seconds, *_decisions(problem, layers))
        plot_stages(options.run, names[: number + 1], results)
        write_text(options.run / "results.json", json.dumps(results, indent=1) + "\n")
        _save(problem, options, layers, options.run / name / "policy")
    _save(problem, options, layers, options.out or options.run / "policy")
    return results


def _figures(problem: LtdProblem, seconds, steps, sizes) -> dict[str, float]:
    found = replay.walk(problem.validation, seconds, steps, sizes).figures(problem.validation)
    return {name: round(value, 4) for name, value in found.items()}


def _decisions(problem: LtdProblem, layers: dict) -> tuple[np.ndarray, np.ndarray]:
    return replay.decisions(problem.validation, layers, problem.config, problem.absent)


def _texts(problem: LtdProblem, options: LtdOptions, kind: str, others: dict):
    """Load real texts, with the other policy's decisions as in `data_of`."""
    steps = problem.training.steps
    fixed = np.full((1, steps + 1), problem.absent[1])
    drawn = np.full(1, -1 if problem.preset.random_depth and steps else steps)

    def decide(scores, context):
        if kind == "depth":
            return replay.sizes_of(
                others["size"], scores, context, config=problem.config
            ) if others else fixed, None
        return None, replay.depths_of(
            others["depth"], scores, context, config=problem.config
        ) if others else drawn

    return load_texts(options.live, problem.training.header, decide, options.seed)


def _stage(
    problem, options: LtdOptions, number: int, name: str, kind: str, others: dict, params, seconds
) -> dict:
    """Train one policy; return its last critic and the actor with the best validation."""
    settings, environment = getattr(problem.preset, kind), environment_of(problem, kind)
    settings = dataclasses.replace(
        settings, steps=max(int(settings.steps * options.share), settings.rollout)
    )
    if options.live:
        environment = make_live(environment, problem.training.steps)
    data = (
        _texts(problem, options, kind, others) if options.live else data_of(problem, kind, others)
    )
    seed = options.seed + number
    if params is None:
        hidden = (settings.actor, settings.critic)
        params = init_actor_critic(
            jax.random.key(seed), environment.inputs, environment.actions, *hidden
        )
    rate = replay.walk(problem.training, problem.seconds, *problem.static).figures(
        problem.training
    )["tokens_per_second"]
    learner = start(environment, data, params, settings, options.parallel, seed, rate)
    advance = make_update(
        environment, settings, options.parallel, problem.preset.weighted, bool(options.live)
    )
    total = math.ceil(settings.steps / settings.rollout)
    checkpoints = Checkpoints(options.run / name / "checkpoints", _recipe(problem, options, name))
    with contextlib.closing(checkpoints):
        first, learner = _restored(checkpoints, learner)
        if others and not first:
            # Training may not improve the policy of an earlier stage: keep that as the first best.
            learner = _kept(
                learner, _validated(problem, kind, others, learner, seconds)["tokens_per_second"]
            )
        with contextlib.closing(RunLog(options.run / name, first, total)) as log:
            for done in range(first + 1, total + 1):
                learner, found = advance(
                    learner, data, jnp.float32(learning_rate(done * settings.rollout, settings))
                )
                log.advance(0)
                if _due(done, total, options.validate_every):
                    log.training(done, {key: float(value) for key, value in found.items()})
                    figures = _validated(problem, kind, others, learner, seconds)
                    log.evaluation(done, figures)
                    learner = _kept(learner, figures["tokens_per_second"])
                if _due(done, total, options.save_every or options.validate_every):
                    checkpoints.save(done, _numbered(learner))
    return {"actor": learner.best, "critic": learner.params["critic"]}


def _validated(
    problem: LtdProblem, kind: str, others: dict, learner: Learner, seconds
) -> dict[str, float]:
    layers = others | {kind: learner.params["actor"]}
    return _figures(problem, seconds, *_decisions(problem, layers))


def _due(done: int, total: int, every: int | None) -> bool:
    return done == total or done % (every or max(total // 10, 1)) == 0


def _kept(learner: Learner, value: float) -> Learner:
    if value <= float(learner.best_value):
        return learner
    # Copy: the next update donates the learner's own arrays.
    return learner.replace(
        best=jax.tree.map(jnp.copy, learner.params["actor"]), best_value=jnp.float32(value)
    )


def _recipe(problem: LtdProblem, options: LtdOptions, stage: str) -> dict:
    """Describe what a checkpoint must agree with; record and times by content."""
    described = {name: str(value) for name, value in problem.preset.__dict__.items()}
    data = {
        "record": fingerprint((problem.training.scores, problem.training.committed)),
        "times": fingerprint(problem.seconds),
    }
    return {
        "stage": stage,
        "seed": options.seed,
        "parallel": options.parallel,
        "share": options.share,
        **data,
        **described,
    }


def _numbered(learner: Learner) -> dict[str, jax.Array]:
    return {f"{i:03}": leaf for i, leaf in enumerate(jax.tree.leaves(learner))}


def _restored(checkpoints: Checkpoints, learner: Learner) -> tuple[int, Learner]:
    """Return (updates done, learner) of the newest checkpoint, or 0 and the given learner."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), _numbered(learner)
    )
    found = checkpoints.restore(shapes)
    if found is None:
        # Donated arrays must not be shared, but the best actor shares the parameters' arrays: copy.
        return 0, jax.tree.map(jnp.copy, learner)
    done, leaves = found
    return done, jax.tree.unflatten(
        jax.tree.structure(learner), [leaves[name] for name in sorted(leaves)]
    )


def _save(problem: LtdProblem, options: LtdOptions, layers: dict, folder: Path) -> None:
    config, header = problem.config, problem.training.header
    depths = config.depths if "depth" in layers else ()
    sizes = config.sizes if "size" in layers else ()
    config = dataclasses.replace(config, depths=depths, sizes=sizes)
    times = problem.times
    about = {name: header[name] for name in ("model", "drafter", "builder")}
    # The record names the target but has no fingerprint of it; old files of times have none either.
    about |= {name: times.about[name] for name in ("target", "device") if name in times.about}
    about |= {STEP_COSTS: times.fingerprint}
    about |= {"preset": options.preset, "reward": problem.preset.reward}
    save_policy(make_ltd(config, layers.get("depth"), layers.get("size")), folder, about)


def main(options: LtdOptions) -> None:
    """Train, and print the figures of the validation prompts."""
    for name, figures in train_ltd(options).items():
        print(f"{name:>10} " + " ".join(f"{key} {value:.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(LtdOptions))
