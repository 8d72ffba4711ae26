"""`python -m benchmarks specblock`: trees, blocks, rank classes and recipes as SpecBlock's paper."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, parse, values

EXAMPLE = "mini --what branching,ranks --limit 4"
# What a trained drafter is enough for, and what trains.
WHATS = ("branching", "widths", "blocks", "ranks", "forms")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    from benchmarks.specblock.compare_forms import PRESETS
    from benchmarks.specblock.compare_trees import BUDGETS

    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--what",
        type=parse.parse_names,
        default=WHATS[:-1],
        help="comma-separated: branching (by rank class or uniform), widths (two maps), blocks "
        "(M = 2, 3, 4), ranks (classes and slots on held-out text), forms (train by --presets) "
        "(default: all but forms)",
    )
    add(
        "--seeds-of",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders of drafters of several seeds, instead of --drafter",
    )
    bench_prompts.add_prompts(parser)
    add("--temperature", type=float, default=0.0, help=f"0 is greedy decoding {default}")
    add("--budgets", type=parse.parse_integers, default=BUDGETS, help="rows of the trees")
    add("--presets", type=parse.parse_names, default=PRESETS, help="recipes, the reference first")
    add("--corpus", type=Path, help="texts to train on, for forms")
    add("--out", type=Path, default=Path("runs/specblock"), help=f"folder of the runs {default}")
    add("--seeds", type=int, default=3, help=f"trainings of each recipe {default}")
    add("--steps", type=int, help="of a training (default: the preset's)")
    add("--texts", type=int, default=2560, help=f"answers to train on {default}")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure what `--what` names, and render tables."""
    from benchmarks.specblock.compare_forms import compare_forms
    from benchmarks.specblock.compare_trees import (
        DRAFTER,
        compare_blocks,
        compare_branching,
        compare_widths,
        render_ways,
    )
    from benchmarks.training.held_out import analyse_held_out, tabulate_classes, tabulate_slots

    if unknown := set(arguments.what) - set(WHATS):
        raise ValueError(f"{min(unknown)!r} is nothing to compare: choose of {', '.join(WHATS)}")
    if "forms" in arguments.what and arguments.corpus is None:
        raise ValueError("forms trains drafters: give --corpus FILE")
    prompts, bundles = _load(arguments, DRAFTER)
    tokens = arguments.max_new_tokens
    given = dict(
        max_new_tokens=tokens, temperature=arguments.temperature, budgets=arguments.budgets
    )
    compared = {"branching": compare_branching, "widths": compare_widths, "blocks": compare_blocks}
    report, texts = {}, []

    def show_held_out(found: dict[str, Any]) -> None:
        texts.extend([tabulate_classes(found).to_text(), tabulate_slots(found).to_text()])

    for what in dict.fromkeys(arguments.what):
        values.show_progress(what)
        if what in compared:
            report[what] = compared[what](bundles, prompts, **given)
            texts.append(render_ways(report[what]))
        elif what == "ranks":
            report[what] = analyse_held_out(bundles, DRAFTER, prompts, tokens)
            show_held_out(report[what])
        else:
            report[what] = found = compare_forms(
                arguments.corpus,
                prompts,
                arguments.out,
                target=arguments.model,
                presets=arguments.presets,
                seeds=range(arguments.seeds),
                steps=arguments.steps,
                texts=arguments.texts,
                max_new_tokens=tokens,
            )
            for name, tree in found["trees"].items():
                texts.append(f"{name}\n{render_ways(tree)}")
            for preset, ranks in found["held_out"].items():
                texts.append(preset)
                show_held_out(ranks)
    return report | {"model": arguments.model}, "\n\n".join(texts)


def _load(arguments: argparse.Namespace, drafter: str) -> tuple[Any, list[Any]]:
    """Read the prompts, and load the target with the drafter of every seed.

    Raises:
      ValueError: the model has no such drafter, and none is given.
    """
    import jaxspec

    if set(arguments.what) == {"forms"}:
        target = jaxspec.load(arguments.model, drafter={}, dtype=arguments.dtype)
        return bench_prompts.read_prompts(arguments, target.tokenizer), []
    if arguments.seeds_of:
        bundles = [
            jaxspec.load(arguments.model, drafter={drafter: str(one)}, dtype=arguments.dtype)
            for one in arguments.seeds_of
        ]
    else:
        bundles = [values.load_params(arguments)]
    if drafter not in bundles[0].spec.drafter_names:
        raise ValueError(f"the model has no {drafter} drafter: give --drafter {drafter}=DIR")
    return bench_prompts.read_prompts(arguments, bundles[0].tokenizer), bundles
