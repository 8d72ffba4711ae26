"""Train SpecBlock by two recipes, ours and the paper's, and compare the drafters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import jaxspec
from benchmarks.specblock.compare_trees import DRAFTER, Way, compare_ways
from benchmarks.training.held_out import analyse_held_out
from benchmarks.training.recipes import BY_CLASS
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from training.regenerate import RegenerateOptions, regenerate
from training.train_drafter import DrafterOptions, make_preset_options, train_drafter

PRESETS = ("specblock", "specblock-paper-mini")
# Builders of both forms: the default's tree, and algorithm 2.
TREES = {"default tree": "rank_guided", "algorithm 2": BY_CLASS}


def train_by_preset(
    preset: str,
    texts: Sequence[Path],
    out: Path,
    *,
    target: str | None = None,
    seed: int = 0,
    steps: int | None = None,
    **changes: Any,
) -> Params:
    """Train a drafter by a preset, or load the one that an earlier call trained.

    Args:
      preset: such as `specblock-paper`.
      texts: files of training text.
      out: folder for the run, which goes on there after an interruption, and for the drafter.
      target: the model; None is the preset's.
      seed: of first weights, order and anchors.
      steps: optimizer steps, with warm-up and delays in proportion; None is the preset's steps or
        epochs.
      changes: fields of `training.train_drafter.DrafterOptions` to replace.

    Returns:
      Target and drafter.

    Raises:
      ValueError, OSError: as `train_drafter`.
    """
    options = make_preset_options(preset, tuple(texts), out / "drafter", out / "run")
    options = dataclasses.replace(options, seed=seed, target=target or options.target)
    options = options if steps is None else _shorten(options, steps)
    options = dataclasses.replace(options, **changes)
    if not (options.out / "config.json").is_file():
        train_drafter(options)
        # A process that keeps the programs of several runs reaches the limit of its memory maps.
        jax.clear_caches()
    return jaxspec.load(options.target, drafter={options.model.kind: str(options.out)})


def _shorten(options: DrafterOptions, steps: int) -> DrafterOptions:
    """Plan `steps` steps; the warm-up and what waits shrink with them."""
    share = min(steps / options.loop.steps, 1.0)
    own = options.method[DRAFTER]
    own = dataclasses.replace(
        own, rank_from=int(share * own.rank_from), blocks_from=int(share * own.blocks_from)
    )
    warmup = options.optimizer.warmup
    warmup = warmup if warmup < 1 else int(share * warmup)
    every = dict(steps=steps, save_every=max(steps // 4, 1), eval_every=steps)
    return dataclasses.replace(
        options,
        loop=dataclasses.replace(options.loop, **every),
        optimizer=dataclasses.replace(options.optimizer, warmup=warmup),
        method=options.method | {DRAFTER: own},
        epochs=None,
    )


def write_text(target: str, corpus: Path, out: Path, limit: int, max_new_tokens: int = 160) -> Path:
    """Let the target write the training text, or go on where an earlier call stopped."""
    out.parent.mkdir(parents=True, exist_ok=True)
    options = RegenerateOptions(
        target,
        corpus,
        out,
        temperatures=(0.0, 0.0, 0.7, 1.0),
        limit=limit,
        max_new_tokens=max_new_tokens,
    )
    regenerate(options)
    return out


def compare_forms(
    corpus: Path,
    prompts: Sequence[LabelledPrompt],
    out: Path,
    *,
    target: str = "mini",
    presets: Sequence[str] = PRESETS,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    texts: int = 2560,
    max_new_tokens: int = 96,
    **changes: Any,
) -> dict[str, Any]:
    """Train by every preset with every seed, and compare acceptance and rank heads.

    Args:
      corpus: texts from which the target's prompts are cut.
      prompts: held-out ones.
      out: folder for text, runs and drafters; the same call goes on after an interruption.
      target: the model.
      presets: the first is the reference.
      seeds: of the trainings.
      steps: of a training; None is the preset's.
      texts: answers that the target writes for training.
      max_new_tokens: of held-out answers.
      changes: fields of `training.train_drafter.DrafterOptions` to replace in every training.

    Returns:
      A JSON-able report: `trees`, {tree: report of `compare_ways` over the presets}, and
      `held_out`, {preset: report of `analyse_held_out`}.
    """
    text = write_text(target, corpus, out / "text.jsonl", texts)
    bundles = {
        preset: [
            train_by_preset(
                preset,
                (text,),
                out / f"{preset}-seed{seed}",
                target=target,
                seed=seed,
                steps=steps,
                **changes,
            )
            for seed in seeds
        ]
        for preset in presets
    }
    trees = {
        name: compare_ways(
            {preset: Way(builder, found) for preset, found in bundles.items()},
            prompts,
            against=presets[0],
            max_new_tokens=max_new_tokens,
        )
        for name, builder in TREES.items()
    }
    held_out = {
        preset: analyse_held_out(found, DRAFTER, prompts, max_new_tokens)
        for preset, found in bundles.items()
    }
    return {"presets": list(presets), "steps": steps, "trees": trees, "held_out": held_out}
