"""Train BlockPilot's predictor of a request's block size, and report what it gains.

    python -m jaxspec.training.policies.blockpilot --prompts corpus.jsonl.gz \\
      --held-out heldout.jsonl.gz --drafter dflash --out policies/blockpilot

The rounds of all prompts with all block sizes are kept in `answers`; a stopped run continues from
there. The prompts are split into training and validation, and the epoch with the largest
validation score is kept. On the test prompts the predictor is compared with the size that was best
in training, the drafter's trained size, the commonest label, a predictor that was trained on
shuffled features, and the oracle, which always picks the best size: an upper bound for every
predictor. To use the policy, decode with `block_size` (and with a chain `budget`) set to the
largest of its sizes.
"""

from __future__ import annotations

import json

import numpy as np

from jaxspec.io.files.atomic import write_text
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_rows import about

from ..run.command import one_line_errors
from .block_costs import policy_widths
from .blockpilot_data import best_of, labels_of
from .blockpilot_fit import choices_of, fit_predictor, inputs, predicted, shuffled
from .blockpilot_problem import BlockPilotOptions, BlockPilotProblem, load_problem
from .blockpilot_report import CONSTANT, FIXED, TOLD, BlockChoice, lines_of, report


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


def train_blockpilot(options: BlockPilotOptions) -> tuple[Policy, dict]:
    """Answer the prompts, train and save the policy, and compare it on test prompts.

    Returns:
      (the policy, its report, also written to `out`/report.json).

    Raises:
      ValueError, OSError: prompts, options or checkpoints are unusable.
    """
    problem = load_problem(options)
    answers, parts, score = problem.answers, problem.parts, problem.score(options.label)
    projection, x = inputs(answers, parts[0], options)
    layers = fit_predictor(x, score, parts[:2], options)
    blind = shuffled(x, parts, options.seed)
    choices = constants(problem, options.label) | {
        "BlockPilot": BlockChoice(predicted(layers, x[parts[2]])[None], options.reduction),
        "shuffled features": BlockChoice(
            predicted(fit_predictor(blind, score, parts[:2], options), blind[parts[2]])[None],
            options.reduction,
        ),
    }
    sizes = tuple(answers.sizes.tolist())
    widths = policy_widths(sizes, options.builder, options.budget)
    policy = make_blockpilot(sizes, Predictor(layers, projection), widths, **choices_of(options))
    made_for = about(problem.params, problem.method, {"builder": options.builder})
    save_policy(
        policy, options.out / "policy", made_for | {"model": options.target, "label": options.label}
    )
    found = {
        "label": options.label,
        "sizes": list(sizes),
        "prompts": [len(part) for part in parts],
        "test": report(answers.take(parts[2]), choices, best_of(score[parts[2]]), problem.times),
    }
    write_text(options.out / "report.json", json.dumps(found, indent=1) + "\n")
    return policy, found


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        _, made = train_blockpilot(tyro.cli(BlockPilotOptions))
        print(f"{made['prompts'][2]} test prompts, labels by {made['label']}")
        print("\n".join(lines_of(made["test"])))
