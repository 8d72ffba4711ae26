"""Run a study: `python -m benchmarks NAME …`, from a clone of the repository."""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from jaxspec.cli.shared import values
from jaxspec.cli.shared.errors import report_errors
from jaxspec.cli.shared.parser import Parser
from jaxspec.core.runtime.near_miss import choose_one

# Options that name files to write; they are checked before anything is measured.
FILES = ("json", "plot", "report", "keep")


class Study(NamedTuple):
    """A study and where it is.

    Attributes:
      module: has either `add_options(parser)` and `run(arguments)`, which returns a report for
        `--json` and a text to print, or `main(options)`, whose dataclass of options tyro reads, and
        which returns the exit status or None.
      summary: one line for `--help`.
    """

    module: str
    summary: str


STUDIES = {
    "adapt": Study(
        "benchmarks.adapt.adapt_command",
        "serve streams whose text changes, with every decider of updates",
    ),
    "bastion": Study(
        "benchmarks.bastion.bastion_command",
        "measure BASTION's figures: surrogate, beams, saturation, corrections, published methods, "
        "calibration, peaks",
    ),
    "batches": Study(
        "benchmarks.serving.batches_command", "model full engines of a GPU that you don't have"
    ),
    "blockpilot": Study(
        "benchmarks.training.blockpilot_study", "train BlockPilot with several seeds and inputs"
    ),
    "capacities": Study(
        "benchmarks.latency.capacities_command", "time steps by the capacity of the caches"
    ),
    "confidence": Study(
        "benchmarks.confidence.confidence_command",
        "compare the probabilities that a drafter gives its tokens with what the target accepts",
    ),
    "few-rows": Study(
        "benchmarks.kernels.few_rows",
        "time a layer's products for few rows with each copy of its weights, on a CPU",
    ),
    "first": Study(
        "benchmarks.loading.first_command",
        "time the first call of new processes, which compile all they need",
    ),
    "gaps": Study(
        "benchmarks.ranks.gaps_command",
        "measure the rank-1 gap: how much likelier a drafter thinks its first branch than the target",
    ),
    "load": Study(
        "benchmarks.loading.load_command",
        "time the load of a checkpoint with random weights, and its peak host memory",
    ),
    "ltd-check": Study(
        "benchmarks.training.ltd_check", "compare a record of rounds with real decodes"
    ),
    "ltd-compare": Study(
        "benchmarks.training.ltd_compare", "compare trained policies on a record, by modelled time"
    ),
    "ltd-controls": Study(
        "benchmarks.training.ltd_controls", "make controls of a trained LTD policy"
    ),
    "ltd-evaluate": Study(
        "benchmarks.training.ltd_evaluate", "evaluate a trained LTD policy by modelled time"
    ),
    "ltd-rounds": Study(
        "benchmarks.training.ltd_rounds", "show the rounds that trained LTD policies choose"
    ),
    "pauses": Study(
        "benchmarks.policies.pauses_command",
        "replay when the default pauses drafting, and other rules, on recorded rounds",
    ),
    "policies": Study(
        "benchmarks.policies.policies_command",
        "compare policies on one method, by a model of time and by the clock",
    ),
    "ranks": Study(
        "benchmarks.ranks.ranks_command",
        "count how often a drafter's first candidate is right, on a tree's spine and off it",
    ),
    "recipes": Study(
        "benchmarks.training.sweep", "train drafters by several recipes, and compare them"
    ),
    "rounding": Study(
        "benchmarks.latency.rounding_command",
        "count the tokens that narrower weights and caches change",
    ),
    "saturate": Study(
        "benchmarks.serving.saturate_command",
        "compare the serving engine with one call of `decode` for the same batch",
    ),
    "scores": Study(
        "benchmarks.confidence.scores_command", "find the best score temperature of a method"
    ),
    "serve-adapt": Study(
        "benchmarks.serving.adapting_command",
        "compare the serving engine while its drafter learns with one that does not",
    ),
    "serve-decode": Study(
        "benchmarks.serving.serve_decode_command",
        "compare the serving engine with `decode` for one client, and with plain rounds for more",
    ),
    "shorten": Study("benchmarks.shorten", "shorten a result to the figures that tables quote"),
    "shrink": Study(
        "benchmarks.serving.shrink_command",
        "compare batches that leave out their finished sequences with whole ones",
    ),
    "specblock": Study(
        "benchmarks.specblock.specblock_command",
        "compare SpecBlock's trees, blocks and recipes with its paper's, and its rank head's classes",
    ),
    "sweep": Study(
        "benchmarks.sweep.sweep_command",
        "compare fixed budgets with a policy that chooses the rows of every round",
    ),
    "top-k": Study("benchmarks.kernels.top_k", "time ways to find a vocabulary's best tokens"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a study.

    Args:
      argv: the study's name and its arguments (default: those of this process).

    Returns:
      The exit status: 0, or 2 for a mistake of the user's.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return report_errors(lambda: _run(given))


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        width = max(map(len, STUDIES))
        print("usage: python -m benchmarks NAME …; --help after a name lists its options\n")
        print("\n".join(f"  {name:{width}}  {one.summary}" for name, one in STUDIES.items()))
        return 0
    name, *rest = given
    if name not in STUDIES:
        raise ValueError(f"{name!r} is no study: {choose_one(name, STUDIES)}")
    study = importlib.import_module(STUDIES[name].module)
    if hasattr(study, "add_options"):
        arguments = make_parser(name, study).parse_args(rest)
        values.check_folders(arguments, *(one for one in FILES if hasattr(arguments, one)))
        report, text = study.run(arguments)
        values.show_progress("")
        values.save_json(getattr(arguments, "json", None), report)
        print(text)
        return 0
    import tyro

    options = typing.get_type_hints(study.main)["options"]
    return study.main(tyro.cli(options, args=rest, prog=f"python -m benchmarks {name}")) or 0


def make_parser(name: str, study: ModuleType) -> Parser:
    """Make the parser of a study that has `add_options`."""
    summary = STUDIES[name].summary
    parser = Parser(
        prog=f"python -m benchmarks {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"Example: python -m benchmarks {name} {study.EXAMPLE}",
    )
    study.add_options(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
