"""Train a drafter of any kind for a target, in one command.

    jaxspec train --preset jetspec --target mini \\
        --data.files regenerated.jsonl --eval.prompts heldout.jsonl.gz \\
        --loop.run runs/jetspec --out drafters/jetspec

Run the same command again to continue after an interruption. `--dry-run` says what a run would
need. The best data is text that the target itself wrote, see `jaxspec regenerate`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax

import jaxspec
from jaxspec.core.params import Params
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.core.runtime.processes import connect

from .acceptance import EvalOptions, make_evaluate
from .data.draft_vocab import make_draft_vocabulary
from .data.packing import PackedRows
from .data.pipeline import AnchorBatches, DataOptions, load_packed_rows
from .drafters import TrainingRecord, list_presets, make_options, named
from .drafters.first_weights import (
    join_frozen,
    make_first_weights,
    read_first_weights,
    split_frozen,
)
from .drafters.model_options import ModelOptions
from .dry_run import describe_run
from .export import write_drafter
from .loss.feature_cache import with_cached_states
from .loss.objective import LossOptions
from .preview import show_samples
from .recipe import describe_recipe, with_steps
from .run.command import one_line_errors
from .run.loop import LoopOptions, fit
from .run.optimizer import OptimizerOptions, make_optimizer

PROGRAM = "jaxspec train"


@dataclasses.dataclass
class DrafterOptions:
    """Options of the drafter recipe.

    Attributes:
      data: see `training.data.pipeline.DataOptions`.
      out: folder for the trained drafter: config.json, model.safetensors, training.json,
        training.png and README.md.
      loop: see `training.run.loop.LoopOptions`.
      target: `mini`, a directory or a hub id.
      model: see `training.drafters.model_options.ModelOptions`.
      loss: see `training.loss.objective.LossOptions`.
      method: options of single drafters, by group, see `training.drafters.TrainingRecord`. Only
        those of the drafter that is trained are read.
      optimizer: see `training.run.optimizer.OptimizerOptions`.
      eval: see `training.acceptance.EvalOptions`.
      batch: number of rows in a batch.
      epochs: passes over the data, instead of `loop.steps`.
      anchors: number of anchors per row, drawn anew every time that it is read.
      init: folder of a drafter whose weights to start from (default: random weights).
      target_dtype: dtype of the frozen target's weights.
      cache_features: folder for the target's states, for data that is read many times. Prints its
        size before it is written.
      seed: seed of the first weights, the order of rows and the anchors.
      dry_run: say what the run would need, and stop.
      preview: print this many samples with the tokens to predict marked, and stop.
    """

    data: DataOptions
    out: Path
    loop: LoopOptions
    target: str = "mini"
    model: ModelOptions = dataclasses.field(default_factory=ModelOptions)
    loss: LossOptions = dataclasses.field(default_factory=LossOptions)
    method: dict[str, Any] = dataclasses.field(default_factory=make_options)
    optimizer: OptimizerOptions = dataclasses.field(default_factory=OptimizerOptions)
    eval: EvalOptions = dataclasses.field(default_factory=EvalOptions)
    batch: int = 32
    epochs: float | None = None
    anchors: int = 64
    init: Path | None = None
    target_dtype: Literal["float32", "bfloat16"] | None = None
    cache_features: Path | None = None
    seed: int = 0
    dry_run: bool = False
    preview: int = 0


@under_own_settings
def train_drafter(options: DrafterOptions, arguments: Sequence[str] = ()) -> Params:
    """Train, measure acceptance on the way, and write the drafter with its card.

    Args:
      options: the recipe.
      arguments: the command line that the options are from, for the card.

    Returns:
      The target with the trained drafter, named by its kind.

    Raises:
      ValueError, OSError: data, options or checkpoints are unusable; the message says what to do.
    """
    connect(options.loop.hosts)
    target = jaxspec.load(options.target, drafter={}, dtype=options.target_dtype)
    spec, record = target.spec, named(options.model.kind)
    own = record.take_options(options.method)
    config = record.config(options.model, spec.target, spec.tokenizer)
    rows = load_packed_rows(options.data, spec.tokenizer)
    options = with_steps(options, rows)
    _check_tokens(rows, spec.target.vocab_size)
    draft = _draft_collection(rows, record, config, target)
    params = _first_weights(options, record, config, target, draft)
    params, kept = split_frozen(params, record.frozen(own))
    batches = AnchorBatches(
        rows,
        options.batch,
        options.anchors,
        config.depth + 1,
        options.seed,
        after_prompt=record.after_prompt(own),
    )
    if options.cache_features:
        batches = with_cached_states(
            batches, options.cache_features, rows, spec.target, target.target, config.feature_layers
        )
    recipe = describe_recipe(options, rows, config)
    trained = fit(
        params,
        make_optimizer(params, options.loop.steps, options.optimizer, record.outputs),
        record.loss(config, spec.target, options.loss, own),
        record.change_batches(batches, own),
        options.loop,
        recipe,
        frozen=target.target | draft | kept,
        evaluate=make_evaluate(
            target,
            record.name,
            config,
            options.eval,
            lambda params: join_frozen(params, kept) | draft,
        ),
    )
    trained = join_frozen(trained, kept) | draft
    if jax.process_index() == 0:
        write_drafter(options, trained, config, target, recipe, arguments)
    return Params(
        target.target,
        {record.name: trained},
        dataclasses.replace(spec, drafters=((record.name, config),)),
    )


def _check_tokens(rows: PackedRows, vocab_size: int) -> None:
    """Raise a ValueError if the data hold tokens that have no row in the embedding table."""
    if (token := int(rows.tokens.max(initial=0))) >= vocab_size:
        raise ValueError(
            f"the data hold token {token}, and the target has {vocab_size} embedding rows: leave "
            "tokens out that were added to the tokenizer after the target was made"
        )


def _draft_collection(rows: PackedRows, record: TrainingRecord, config, target: Params) -> dict:
    """Return {"draft": the frozen part of a reduced draft vocabulary}, or {}."""
    if config.draft_vocab_size is None:
        return {}
    draft = make_draft_vocabulary(rows, config.draft_vocab_size, target)
    return {"draft": {"ids": draft["ids"]} if record.trains_head else draft}


def _first_weights(
    options: DrafterOptions, record: TrainingRecord, config, target: Params, draft: dict
) -> dict:
    """Make all float32 variables {"params"} of the drafter, frozen ones too."""
    names = record.frozen(record.take_options(options.method))
    if names and options.init is None:
        raise ValueError(f"the {names[0]} is frozen: give --init, the folder of a drafter to keep")
    found = None
    if options.init is not None:
        found, whole = read_first_weights(options.init, record, config, target.spec.target)
        if whole:
            return found
    ids = draft["draft"]["ids"] if draft else None
    first = make_first_weights(record, options.model, config, options.seed, target, ids)
    return first if found is None else join_frozen(first, found["params"])


def make_preset_options(name: str, files: tuple[Path, ...], out: Path, run: Path) -> DrafterOptions:
    """Make the options of a preset.

    Args:
      name: of the preset.
      files: of the data.
      out: folder for the drafter.
      run: folder of the run.
    """
    preset = list_presets()[name]
    model, loss, optimizer, loop = preset.parts(run)
    return DrafterOptions(
        data=DataOptions(files=files, length=preset.length),
        out=out,
        loop=loop,
        target=preset.target,
        model=model,
        loss=loss,
        method=make_options() | preset.method,
        optimizer=optimizer,
        batch=preset.batch,
        epochs=preset.epochs,
        anchors=preset.anchors,
    )


def parse_options(arguments: list[str] | None = None) -> DrafterOptions:
    """Parse options from a command line; `--preset NAME` gives the defaults of all others."""
    import argparse

    import tyro

    presets = list_presets()
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=sorted(presets))
    chosen, rest = first.parse_known_args(arguments)
    described = (
        f"Train a drafter. --preset NAME gives the defaults of all options: {', '.join(presets)}."
    )
    if chosen.preset is None:
        return tyro.cli(DrafterOptions, prog=PROGRAM, args=rest, description=described)
    default = make_preset_options(chosen.preset, *[tyro.MISSING] * 3)
    return tyro.cli(DrafterOptions, prog=PROGRAM, default=default, args=rest, description=described)


def run(arguments: list[str]) -> None:
    """Do what a command line asks for."""
    options = parse_options(arguments)
    if options.preview:
        show_samples(options.data, options.target, options.preview)
    elif options.dry_run:
        print(describe_run(options))
    else:
        train_drafter(options, arguments)


if __name__ == "__main__":
    with one_line_errors():
        run(sys.argv[1:])
