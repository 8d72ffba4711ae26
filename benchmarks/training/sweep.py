"""Run a list of drafter recipes one after another, and write a table and a plot.

    python -m benchmarks recipes all --corpus corpus.jsonl.gz --prompts heldout.jsonl.gz \\
        --out runs/sweep --scale small

Run the same command again to continue after an interruption: finished recipes are kept, and an
unfinished one continues from its last checkpoint. The comparisons follow JetSpec's tables:
`objective` (Table 4), `causality` (Table 7) and `data` (Table 6); `all` is these three. Each shows
acceptance during training. `weights` (Table 7 with more weights, blocks of 8 and 16) and `rates`
(Table 3, AdamW instead of Muon) are longer; with `--as-published` all of these score paths by raw
probabilities and measure JetSpec's trees seven wide. `eagle` compares numbers of EAGLE-3's test-time steps, `specblock`
ablates SpecBlock's components, with figures of the rank head and of single slots,
`specblock-paper` those of the form that its paper describes, and
`conditioning` compares DSpark, whole and in parts, with the drafters of one distribution a depth.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro

from benchmarks.training.held_out import analyse_held_out
from benchmarks.training.recipes import (
    DEFAULT_SCALE,
    FROZEN_SHARE,
    PARTS,
    SCALES,
    SWEEPS,
    VARIANTS,
    Recipe,
    Scale,
    list_measurements,
)
from benchmarks.training.report import write_report
from jaxspec.core.params import Params
from jaxspec.io.files.atomic import write_text
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from training.acceptance import EvalOptions, count_rounds, pool_rounds
from training.data.pipeline import DataOptions
from training.drafters import list_presets, make_options
from training.drafters.model_options import ModelOptions
from training.drafters.presets import SCORING
from training.loss.objective import LossOptions
from training.regenerate import RegenerateOptions, regenerate
from training.run.command import check_made_with
from training.run.loop import LoopOptions
from training.run.metrics import read_metrics
from training.run.optimizer import OptimizerOptions
from training.train_drafter import DrafterOptions, train_drafter


@dataclasses.dataclass
class SweepOptions:
    """Options of a sweep.

    Attributes:
      name: the comparison.
      corpus: text records, {"domain", "text"}, from which prompts are cut. They are also the other
        data of the comparison `data`.
      prompts: held-out prompts or texts, never trained on.
      out: folder for runs and results.
      target: `mini`, a directory or a hub id.
      scale: `small` takes under three hours on two CPU cores, `brief` trains half as long and
        measures less, `full` needs a GPU.
      feature_layers: target layers that the drafters read; None spreads them evenly.
      temperatures: temperatures of the target's texts, in turn.
      sampled: further temperatures at which acceptance is measured after the training, of whole
        drafters; parts of DSpark are compared at temperature 0.
      cache: keep the target's states of all texts on disk, so that runs need not recompute them.
      as_published: score paths by the drafter's raw probabilities (JetSpec, equation 10), and
        measure its trees seven wide as in its code, instead of as this library does by default.
      seeds: run every recipe once with each of these seeds; none takes the comparison's own.
    """

    name: Annotated[Literal[*SWEEPS], tyro.conf.Positional]
    corpus: Path
    prompts: Path
    out: Path
    target: str = "mini"
    scale: Literal[*SCALES] = DEFAULT_SCALE
    feature_layers: tuple[int, ...] | None = (1, 3, 4)
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    sampled: tuple[float, ...] = ()
    cache: bool = True
    as_published: bool = False
    seeds: tuple[int, ...] = ()

    def recipes(self) -> list[Recipe]:
        """List the recipes of the comparison, seed by seed."""
        chosen = SWEEPS[self.name]
        again = (dataclasses.replace(one, seed=seed) for seed in self.seeds for one in chosen)
        return list(dict.fromkeys(again)) if self.seeds else list(chosen)


def make_drafter_options(recipe: Recipe, options: SweepOptions, scale: Scale) -> DrafterOptions:
    """Return the trainer's options for `recipe`."""
    scale = _own_scale(recipe, scale)
    data = {
        "regenerated": DataOptions((options.out / "regenerated.jsonl",), scale.length),
        # At most as many rows as the target's texts fill, so that both are read equally often.
        "corpus": DataOptions(
            (options.corpus,),
            scale.length,
            domains={"math": 0.4, "code": 0.3, "prose": 0.3},
            rows=scale.texts,
        ),
    }[recipe.data]
    backbone = recipe.backbone
    steps = scale.steps if backbone is None else scale.steps // FROZEN_SHARE
    every = max(steps // scale.evals, 1)
    return DrafterOptions(
        data=data,
        out=options.out / recipe.name / "drafter",
        loop=LoopOptions(
            options.out / recipe.name, steps, save_every=every, eval_every=every, parts=2
        ),
        target=options.target,
        model=_model(recipe, options, scale),
        loss=LossOptions(recipe.loss, gamma=recipe.gamma),
        method=make_options() | (VARIANTS[recipe.variant][1] if recipe.variant else {}),
        optimizer=OptimizerOptions("muon")
        if recipe.rate is None
        else OptimizerOptions("adamw", rate=recipe.rate, betas=(0.9, 0.999)),
        eval=EvalOptions(options.prompts, limit=scale.prompts, max_new_tokens=scale.max_new_tokens),
        batch=scale.batch,
        anchors=scale.anchors,
        cache_features=options.out / f"states-{recipe.data}" if options.cache else None,
        seed=recipe.seed,
        init=None if backbone is None else options.out / backbone.name / "drafter",
    )


def _own_scale(recipe: Recipe, scale: Scale) -> Scale:
    """Return the scale with the recipe's block size."""
    return scale if recipe.block is None else dataclasses.replace(scale, block_size=recipe.block)


def _model(recipe: Recipe, options: SweepOptions, scale: Scale) -> ModelOptions:
    if recipe.variant:
        own = list_presets()[recipe.kind].model | {"feature_layers": options.feature_layers}
        return ModelOptions(**own | VARIANTS[recipe.variant][0])
    return ModelOptions(
        recipe.kind,
        scale.block_size,
        scale.num_layers,
        options.feature_layers,
        score_temperature=(1.0, 1.0) if options.as_published else SCORING,
        zero_residual=True,
    )


def _last_figures(run: Path, count: int = 5) -> dict[str, float]:
    """Average the last logged figures of single slots and of the rank head, on training text."""
    records = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record][
        -count:
    ]
    names = {
        name
        for record in records
        for name in record
        if "accuracy_" in name or name.startswith("rank_")
    }
    return {name: sum(record[name] for record in records) / len(records) for name in sorted(names)}


def _analyse(
    bundle: Params, kind: str, prompts: Sequence[LabelledPrompt], scale: Scale
) -> dict | None:
    """Analyse the rank head and the slots on held-out answers; None without a rank head."""
    if not getattr(bundle.spec.drafter(kind), "rank_classes", 0):
        return None
    return analyse_held_out([bundle], kind, prompts, scale.max_new_tokens)


def run_recipe(recipe: Recipe, options: SweepOptions, scale: Scale) -> dict:
    """Train and measure one recipe, or read the results of an earlier call.

    Raises:
      ValueError: an earlier call used another target, other prompts or another scale.
    """
    found = options.out / recipe.name / "result.json"
    settings = {
        "target": options.target,
        "prompts": options.prompts.name,
        "scale": dataclasses.asdict(scale),
    } | ({"sampled": list(options.sampled)} if options.sampled else {})
    settings |= {"as_published": True} if options.as_published else {}
    if found.is_file():
        kept = json.loads(found.read_text())
        check_made_with(found, kept.get("settings", {}), settings)
        return kept
    began = time.monotonic()
    bundle = train_drafter(make_drafter_options(recipe, options, scale))
    trained = time.monotonic()
    tokenizer = load_tokenizer(bundle.spec.tokenizer) if bundle.spec.tokenizer else None
    prompts = read_prompts(options.prompts, tokenizer, limit=scale.prompts)
    block = _own_scale(recipe, scale).block_size
    counts = {
        name if temperature == 0 else f"{name}, T={temperature:g}": count_rounds(
            bundle,
            recipe.kind,
            prompts,
            max_new_tokens=scale.max_new_tokens,
            temperature=temperature,
            **method,
        )
        for temperature in (0.0, *(() if recipe.variant in PARTS else options.sampled))
        for name, method in list_measurements(recipe.kind, block, options.as_published).items()
    }
    result = {
        "recipe": dataclasses.asdict(recipe),
        "settings": settings,
        "acceptance": {name: pool_rounds(found) for name, found in counts.items()},
        "counts": counts,
        "slots": _last_figures(options.out / recipe.name),
        "held_out": _analyse(bundle, recipe.kind, prompts, scale),
        "train_seconds": round(trained - began, 1),
        "evaluate_seconds": round(time.monotonic() - trained, 1),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    write_text(found, json.dumps(result, indent=1) + "\n")
    return result


def main(options: SweepOptions) -> None:
    """Generate the training text, run all recipes of the comparison, and write the results.

    These are `results.json`, `results.md` and `results.png`.
    """
    scale = SCALES[options.scale]
    options.out.mkdir(parents=True, exist_ok=True)
    text = RegenerateOptions(
        options.target,
        options.corpus,
        options.out / "regenerated.jsonl",
        temperatures=options.temperatures,
        limit=scale.texts,
        domains={"math": 0.4, "code": 0.3, "prose": 0.3},
        max_new_tokens=scale.length * 5 // 8,
    )
    regenerate(text)
    results, recipes = [], options.recipes()
    for number, recipe in enumerate(recipes, 1):
        print(f"{number} of {len(recipes)}: {recipe.name}", flush=True)
        results.append(run_recipe(recipe, options, scale))
        # A run compiles dozens of programs, and a process that keeps those of several runs reaches
        # the limit of its memory maps (65,530 on Linux), at which XLA crashes.
        jax.clear_caches()
        write_report(options.out, options.name, options.scale, dataclasses.asdict(scale), results)
    print((options.out / "results.md").read_text())
