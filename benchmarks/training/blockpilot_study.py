"""Study on held-out prompts whether BlockPilot gains: several seeds, inputs and shuffled features.

    python -m benchmarks blockpilot --prompts corpus.jsonl.gz \\
      --held-out heldout.jsonl.gz --drafter dflash --sizes 4 6 8 10 12 16 \\
      --out runs/blockpilot/dflash --json blockpilot.json

It takes the options of `training.policies.blockpilot` and saves no policy. `--widths 1024 2048
4096`, `--depths 1 2 3` and `--reaches 1 2 3` are the paper's ablations of the network and of k;
each of them trains on raw logits alone. Results are kept by everything that decides them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.training.blockpilot_report import (
    CONSTANT,
    FIXED,
    TOLD,
    BlockChoice,
    difference,
    render_rows,
    report,
)
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.io.files.atomic import write_text
from training.policies.blockpilot_data import best_of, labels_of
from training.policies.blockpilot_fit import fit_predictor, inputs, predicted
from training.policies.blockpilot_problem import BlockPilotOptions, BlockPilotProblem, load_problem

# Options of each variant of the network's input and objective; the first is the paper's.
VARIANTS = {
    "raw logits": {},
    "softmax": {"scale": "softmax"},
    "zscore": {"scale": "zscore"},
    "l2": {"scale": "l2"},
    "top logits": {"reduction": "top"},
    "projection": {"reduction": "projection"},
    "raw, regret": {"objective": "regret"},
    "top, regret": {"objective": "regret", "reduction": "top"},
    "projection, regret": {"objective": "regret", "reduction": "projection"},
}
# Name of the control that reads shuffled raw logits, by objective.
SHUFFLED = {"label": "shuffled features", "regret": "shuffled, regret"}


@dataclasses.dataclass
class StudyOptions(BlockPilotOptions):
    """Options of the study, added to those of a training.

    Attributes:
      seeds: trainings of each variant, with different seeds.
      shuffles: trainings on shuffled raw logits, for each objective.
      variants: names from `VARIANTS`.
      widths, depths: hidden units and numbers of layers to try instead of the network's own.
      reaches: distances from the trained size to try instead of `reach`.
      json: file to add the results to, see `name_result`; None only prints them.
    """

    seeds: int = 3
    shuffles: int = 5
    variants: tuple[str, ...] = tuple(VARIANTS)
    widths: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    reaches: tuple[int, ...] = ()
    json: Path | None = None


def constants(problem: BlockPilotProblem, label: str) -> dict[str, BlockChoice]:
    """Return the constant choices that a predictor must beat, and the oracle, on test prompts."""
    training, _, test = problem.parts
    score, count = problem.score(label), len(test)
    sizes = problem.answers.sizes.tolist()
    classes = {FIXED: problem.score(label, single=True)[training].mean(0).argmax()}
    if problem.trained in sizes:
        classes["trained size"] = sizes.index(problem.trained)
    classes["commonest label"] = np.bincount(labels_of(score[training])).argmax()
    found = {
        name: BlockChoice(np.full((1, count), number), CONSTANT) for name, number in classes.items()
    }
    return found | {"oracle": BlockChoice(labels_of(score[test])[None], TOLD)}


def shuffled(x: np.ndarray, parts, seed: int) -> np.ndarray:
    """Permute the features [P, F] among the prompts of each part.

    A predictor of shuffled features can learn only how frequent each label is.
    """
    rng, found = np.random.default_rng(seed), x.copy()
    for part in parts:
        found[part] = x[rng.permutation(part)]
    return found


def learned(problem: BlockPilotProblem, options: StudyOptions) -> dict[str, BlockChoice]:
    """Train the predictors; return their choices for the test prompts, one row per seed."""
    training, validation, test = problem.parts
    score, found = problem.score(options.label), {}
    for name in options.variants:
        chosen = dataclasses.replace(options, **VARIANTS[name])
        _, x = inputs(problem.answers, training, chosen)

        def classes(x, seed, chosen=chosen):
            layers = fit_predictor(
                x, score, (training, validation), dataclasses.replace(chosen, seed=seed)
            )
            return predicted(layers, x[test])

        found[name] = BlockChoice(
            np.stack([classes(x, seed) for seed in range(options.seeds)]), chosen.reduction
        )
        if not set(VARIANTS[name]) - {"objective"} and options.shuffles:
            blind = [
                classes(shuffled(x, problem.parts, seed), seed) for seed in range(options.shuffles)
            ]
            found[SHUFFLED[chosen.objective]] = BlockChoice(np.stack(blind), chosen.reduction)
    return found


def study(options: StudyOptions) -> dict:
    """Run the study; return its results as JSON.

    Raises:
      ValueError, OSError: prompts, options or checkpoints are unusable.
    """
    if unknown := set(options.variants) - set(VARIANTS):
        raise ValueError(
            f"unknown variants {sorted(unknown)}: {choose_one(min(unknown), VARIANTS)}"
        )
    problem = load_problem(options)
    training, _, test = problem.parts
    score, answers = problem.score(options.label), problem.answers.take(test)
    choices = constants(problem, options.label) | learned(problem, options)
    measure = "rounds" if options.label == "acceptance" else "choice"
    times = problem.times
    return {
        "label": options.label,
        "sizes": answers.sizes.tolist(),
        "prompts": [len(part) for part in problem.parts],
        "domains": {
            str(name): int(count)
            for name, count in zip(*np.unique(answers.domains, return_counts=True), strict=True)
        },
        "fixed": int(answers.sizes[choices[FIXED].classes[0, 0]]),
        "by_size": _by_size(problem),
        "labels": np.bincount(labels_of(score[training]), minlength=len(answers.sizes)).tolist(),
        "ties": float((best_of(score[training]).sum(1) > 1).mean()),
        "test": report(answers, choices, best_of(score[test]), times),
        "over_shuffled": {
            name: difference(answers, choices[name], choices[control], measure, times)
            for name in options.variants
            if (control := SHUFFLED[VARIANTS[name].get("objective", "label")]) in choices
        },
        "times": None if times is None else times.single.about | {"predict": times.predict},
    }


def _by_size(problem: BlockPilotProblem) -> dict[str, list[float]]:
    """Compute tokens per round and per modelled second of every fixed size on the test prompts."""
    answers, times = problem.answers.take(problem.parts[2]), problem.times
    tokens = answers.tokens.sum(0)
    found = {"tokens_per_round": (tokens / answers.rounds.sum(0)).tolist()}
    for name in ("single", "chosen") if times is not None else ():
        found[f"tokens_per_second_{name}"] = (
            tokens / answers.seconds(getattr(times, name)).sum(0)
        ).tolist()
    return found


def add_to(path: Path, name: str, found: dict) -> None:
    """Add results under `name` to a JSON file, and keep its other entries."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _lines(_rounded(kept | {name: found})) + "\n")


def _lines(found, depth: int = 3) -> str:
    """Format JSON with one entry per line in the outer `depth` levels."""
    if not isinstance(found, dict) or not depth:
        return json.dumps(found)
    entries = (f"{json.dumps(name)}: {_lines(value, depth - 1)}" for name, value in found.items())
    return "{\n" + ",\n".join(entries) + "\n}"


def _rounded(found):
    """Round floats to five significant digits."""
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.5g}") if isinstance(found, float) else found


def name_result(options: StudyOptions, sizes: Sequence[int]) -> str:
    """Name a result by what decides it: drafter, sizes, label, network, temperature and samples."""
    network = f"{options.layers} layers of {options.width}"
    drawn = f", T={options.temperature:g}, {options.samples} samples" if options.temperature else ""
    sizes = " ".join(map(str, sizes))
    return f"{Path(options.drafter).name}, {sizes}, {options.label}, {network}{drawn}"


def ablations(options: StudyOptions) -> list[StudyOptions]:
    """List the runs of the ablations, each of which changes one thing and reads raw logits.

    The widest reach comes first: its answers hold those of all others.
    """
    one = dataclasses.replace(
        options, widths=(), depths=(), reaches=(), variants=("raw logits",), shuffles=0
    )
    runs = [dataclasses.replace(one, reach=reach) for reach in sorted(options.reaches)[::-1]]
    runs += [dataclasses.replace(one, width=width) for width in options.widths]
    return runs + [dataclasses.replace(one, layers=layers) for layers in options.depths]


def main(options: StudyOptions) -> None:
    """Run the study or the ablations, print the results and write them."""
    for one in ablations(options) or [options]:
        _run(one)


def _run(options: StudyOptions) -> None:
    found = study(options)
    name = name_result(options, found["sizes"])
    print(
        f"{name}: {found['prompts'][2]} test prompts; "
        f"labels {found['labels']}, {found['ties']:.0%} tied"
    )
    print(render_rows(found["test"]))
    for variant, row in found["over_shuffled"].items():
        print(f"{variant} over shuffled features: {row['ratio']:.4f} {row['interval']}")
    if options.json:
        add_to(options.json, name, found)
