"""Train BlockPilot's predictor of a request's block size, and report what it gains.

    python -m jaxspec.training.policies.blockpilot --prompts corpus.jsonl.gz \\
      --held-out heldout.jsonl.gz --drafter dflash --out policies/blockpilot

The rounds of all prompts with all block sizes are kept in `answers`; a stopped run continues from
there. The prompts are split into training and validation, and the epoch with the largest
validation score is kept. On the test prompts the predictor is compared with the size that was best
in training, the drafter's trained size, and the oracle, which always picks the best size: an upper
bound for every predictor. To use the policy, decode with `block_size` (and with a chain `budget`)
set to the largest of its sizes: `jaxspec bench --methods dflash-chain@18/b18/policy=FOLDER`.
`--preset blockpilot-paper` is the published form: long sampled answers with several seeds.
"""

from __future__ import annotations

import json

import jax
import numpy as np

from jaxspec.io.files.atomic import write_text
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_rows import about

from ..run.command import one_line_errors, parse_with_preset
from .block_costs import policy_widths
from .blockpilot_data import labels_of
from .blockpilot_fit import choices_of, fit_predictor, inputs, predicted
from .blockpilot_problem import PRESETS, BlockPilotOptions, BlockPilotProblem, load_problem


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
    sizes = tuple(answers.sizes.tolist())
    widths = policy_widths(sizes, options.builder, options.budget)
    policy = make_blockpilot(sizes, Predictor(layers, projection), widths, **choices_of(options))
    made_for = about(problem.params, problem.drafter, {"builder": options.builder})
    save_policy(
        policy, options.out / "policy", made_for | {"model": options.target, "label": options.label}
    )
    found = {
        "label": options.label,
        "temperature": options.temperature,
        "samples": options.samples,
        "sizes": list(sizes),
        "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(policy.controls)),
        "prompts": [len(part) for part in parts],
        "test": score_choices(problem, options.label, predicted(layers, x[parts[2]])),
    }
    write_text(options.out / "report.json", json.dumps(found, indent=1) + "\n")
    return policy, found


def score_choices(
    problem: BlockPilotProblem, label: str, chosen: np.ndarray
) -> dict[str, dict[str, float]]:
    """Compare the sizes chosen for the test prompts with constants and the oracle.

    Args:
      problem: the training problem.
      label: `acceptance` or `speed`, what sizes are scored by.
      chosen: int [n], indices of the sizes chosen for the test prompts.

    Returns:
      {name: {"block": mean size, "score": mean score}}.
    """
    training, _, test = problem.parts
    sizes, score = problem.answers.sizes, problem.score(label)
    # A constant would run rounds that are compiled for its size alone.
    fixed = problem.score(label, single=True)[training].mean(0).argmax()
    choices = {"best fixed size": fixed, "BlockPilot": chosen}
    if problem.trained in sizes:
        choices["trained size"] = sizes.tolist().index(problem.trained)
    choices["oracle"] = labels_of(score[test])
    return {
        name: {
            "block": float(np.mean(sizes[at])),
            "score": float(np.mean(score[test, at])),
        }
        for name, at in choices.items()
    }


if __name__ == "__main__":
    with one_line_errors():
        _, made = train_blockpilot(parse_with_preset(BlockPilotOptions, PRESETS))
        unit = "tokens a round" if made["label"] == "acceptance" else "tokens a modelled second"
        megabytes = made["bytes"] / 1e6
        print(f"{made['prompts'][2]} test prompts; the predictor takes {megabytes:.1f} MB")
        for name, row in made["test"].items():
            print(f"{name:>16}: {row['score']:.3f} {unit}, blocks of {row['block']:.1f}")
