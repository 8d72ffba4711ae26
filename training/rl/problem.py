"""LTD's training problem: a record, the times of its rounds, a preset, and the best constant."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.learned.ltd import LtdConfig

from ..replay.records import Record, split_records
from . import replay
from .environment import (
    Data,
    Environment,
    Replay,
    make_depth_environment,
    make_environment_replay,
    make_size_environment,
)
from .presets import PRESETS, LtdPreset


class LtdProblem(NamedTuple):
    """The data that all stages share.

    Attributes:
      preset: with the changes of the options.
      times: of the rounds.
      training, validation: the record, split by prompt.
      replay: the training record on the device.
      seconds: float32 [N, S, V], times of the training record's rounds.
      static: (steps, size index) of the best constant.
      absent: (steps, size index) that stands in for a policy that is not trained yet: `static`,
        unless `fixed_rows` or the preset gives other rows.
      config: of both policies together, as in use.
    """

    preset: LtdPreset
    times: RoundCosts
    training: Record
    validation: Record
    replay: Replay
    seconds: np.ndarray
    static: tuple[int, int]
    absent: tuple[int, int]
    config: LtdConfig


def pose(
    record: Record,
    times: RoundCosts,
    preset: str,
    *,
    reward: str | None = None,
    observes: str = "P+D+L",
    schedule: tuple[str, ...] | None = None,
    fixed_rows: int | None = None,
    size_actor: tuple[int, ...] | None = None,
    depth_actor: tuple[int, ...] | None = None,
) -> LtdProblem:
    """Pose the problem: apply options to the preset and split the record.

    The options are those of `ltd.LtdOptions`.

    Raises:
      ValueError: the times are of other rounds, or options do not suit the record.
    """
    for name in ("model", "drafter", "builder"):
        if times.about.get(name) != record.header[name]:
            raise ValueError(
                f"the record has {name} {record.header[name]}, the times have "
                f"{times.about.get(name)}: record and time the same rounds"
            )
    chosen, tree = PRESETS[preset], record.header["sees"] == "tree"
    schedule = schedule or (("size",) if tree else chosen.schedule)
    if tree and "depth" in schedule:
        raise ValueError(
            f"builder {record.header['builder']!r} has no draft steps to decide: "
            "give --schedule size"
        )
    chosen = dataclasses.replace(
        chosen,
        size=dataclasses.replace(chosen.size, actor=size_actor or chosen.size.actor),
        depth=dataclasses.replace(chosen.depth, actor=depth_actor or chosen.depth.actor),
        reward=reward or chosen.reward,
        observes=observes,
        schedule=schedule,
    )
    if "depth" in schedule and record.steps <= max(chosen.first, chosen.first_act):
        raise ValueError(
            f"{preset} decides after {chosen.first_act} draft steps, the record has "
            f"{record.steps}: record with more --steps"
        )
    training, validation = split_records(record)
    seconds = training.round_seconds(times)
    absent = static = replay.best_static(training, seconds)
    fixed_rows = chosen.fixed_rows if fixed_rows is None else fixed_rows
    if fixed_rows is not None and "depth" in schedule:
        if fixed_rows not in record.sizes:
            raise ValueError(
                f"fixed_rows is {fixed_rows}: give --fixed-rows, one of the recorded sizes "
                f"{list(record.sizes)}, or record rounds with --preset {preset}"
            )
        absent = (static[0], record.sizes.index(fixed_rows))
    config = _config(record, chosen)
    return LtdProblem(
        chosen,
        times,
        training,
        validation,
        make_environment_replay(training, times),
        seconds,
        static,
        absent,
        config,
    )


def _config(record: Record, preset: LtdPreset) -> LtdConfig:
    """Make the config of both policies together, as in use."""
    every = range(preset.first_act, record.steps, preset.acts_every)
    widths = tuple(sorted({1, *record.sizes}))
    activation = preset.size.activation
    header = record.header
    sees = {"sees": header["sees"], "observes": preset.observes, "hidden": _hidden(record, preset)}
    return LtdConfig(
        widths,
        header["width"],
        record.steps,
        tuple(every),
        record.sizes,
        **sees,
        activation=activation,
        score_scale=header["score_scale"],
    )


def _hidden(record: Record, preset: LtdPreset) -> int:
    """Return the numbers of the hidden states that the networks read.

    Raises:
      ValueError: the record lacks what the networks observe.
    """
    for letter, name in (("E", "entropy"), ("H", "hidden")):
        if letter in preset.observes and getattr(record, name) is None:
            raise ValueError(
                f"observes is {preset.observes!r}, and the record holds no {name}: "
                f"record rounds with --keeps {name}"
            )
    return record.hidden.shape[-1] if "H" in preset.observes else 0


def environment_of(problem: LtdProblem, kind: str) -> Environment:
    """Make the task of the `size` or `depth` policy."""
    record, preset = problem.training, problem.preset
    if kind == "depth":
        asked = tuple(range(preset.first, record.steps, preset.every))
        return make_depth_environment(
            record.header["width"],
            record.steps,
            asked,
            preset.reward,
            stale=preset.stale,
            observes=preset.observes,
            hidden=problem.config.hidden,
        )
    return make_size_environment(
        record.header["sees"],
        record.header["width"],
        record.steps,
        record.sizes,
        record.scores.shape[1],
        preset.reward,
        least=preset.first,
        observes=preset.observes,
        hidden=problem.config.hidden,
    )


def data_of(problem: LtdProblem, kind: str, others: dict) -> Data:
    """Make the environment's input: the replay, and the decisions of the other policy.

    If there is no other policy yet, `absent` (or a random depth) decides.
    """
    record = problem.training
    shape = (len(record.context), record.steps + 1)
    if kind == "depth":
        fixed = np.full(shape, problem.absent[1], np.int32)
        size = replay.choose_sizes(record, others["size"], problem.config) if others else fixed
        return Data(problem.replay, size=jnp.asarray(size))
    fixed = np.full(
        shape[0], -1 if problem.preset.random_depth and record.steps else record.steps, np.int32
    )
    depth = replay.choose_depths(record, others["depth"], problem.config) if others else fixed
    return Data(problem.replay, depth=jnp.asarray(depth))
