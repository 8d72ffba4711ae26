"""Command line options that several commands share; `jaxspec.cli.shared.values` reads them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from jaxspec.cli.shared import parse
from jaxspec.policies.registry import AUTOMATIC, policy_forms

# argparse has no public name for what `add_subparsers` returns.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]

DTYPES = ("float32", "bfloat16", "float16")
PROMPT_FILE = "a .jsonl, .json or .parquet file, or hub:OWNER/NAME, as for bench"
DEFAULT = "(default: %(default)s)"
# How the serving engine shares rows, see `jaxspec.serve.on_device.share_rows.RULES`, which is slow
# to import.
RULES = ("global", "equal", "fixed", "ar")
# Environment variable with the key of an endpoint.
KEY_VARIABLE = "JAXSPEC_API_KEY"


def add_parser(
    commands: Commands, name: str, run: Run, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add a command to a parser.

    Args:
      commands: result of `add_subparsers`.
      run: takes the parsed arguments and returns the exit status.
      summary: one sentence, without a capital or a full stop, for the list of commands.
      example: a command line that works, shown below the options.
    """
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"Example: {example}",
    )
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser, default: str | None = "mini") -> None:
    """Add the model, by position, and the options that say how to load it; see `add_name`."""
    add_name(parser, default)
    add_drafter(parser)
    add_dtype(parser)
    parser.add_argument(
        "--quantize",
        choices=("int8", "fp8", "int4", "none"),
        help="store each weight of the target in one byte; keep those that the checkpoint has in "
        "four bits; or none in few bits (default: keep those that it has in one byte)",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("fp8",),
        help="round the target's keys and values to one byte (default: keep them as --dtype)",
    )


def add_name(parser: argparse.ArgumentParser, default: str | None = "mini") -> None:
    """Add the model, by position.

    Args:
      default: the model if none is named; None: it must be.
    """
    text = "name of a model (mini, smollm2-135m), hub id, directory or GGUF file"
    if default is None:
        parser.add_argument("model", help=text)
    else:
        parser.add_argument("model", nargs="?", default=default, help=f"{text} {DEFAULT}")


def add_drafter(parser: argparse.ArgumentParser) -> None:
    """Add which drafters are loaded; see `values.read_drafters` and `values.choose_drafter`."""
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="[NAME=]SOURCE",
        help="name of a drafter that ships with the model, hub id or directory; ar decodes without "
        "one. Repeatable; NAME=SOURCE gives it another name (default: all that ship with the "
        "model)",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add the options that share a target among devices."""
    parser.add_argument(
        "--tp",
        type=int,
        metavar="N",
        help="share the target among the first N devices (default: one device holds it)",
    )
    add_experts(parser)


def add_experts(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how devices share experts."""
    parser.add_argument(
        "--experts",
        choices=("channel", "expert"),
        default="channel",
        help="with --tp: each device holds some channels of all experts, or some experts whole, "
        f"which suits rounds of at least 64 rows per device {DEFAULT}",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs on several hosts, once on each."""
    add = parser.add_argument
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of process 0, or auto on SLURM and Cloud TPUs; --tp counts all devices",
    )
    add("--process-id", type=int, metavar="I", help="number of this process, from 0")
    add("--processes", type=int, metavar="N", help="number of processes (default: one)")


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the dtype of weights and activations."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype of weights and caches (default: the one that suits the device)",
    )


def add_prompt_form(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what kind of prompt is given."""
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it is (default: models with a chat template answer it)",
    )
    parser.add_argument(
        "--token-ids",
        action="store_true",
        help="read the prompt as token ids separated by spaces or commas",
    )


def add_template(parser: argparse.ArgumentParser) -> None:
    """Add the variables of the model's chat template: a dictionary, or None."""
    parser.add_argument(
        "--template",
        action=parse.SetVariable,
        metavar="NAME=VALUE",
        help="variable of the chat template, as in enable_thinking=false (JSON or text); "
        "repeatable",
    )


def add_decode(
    parser: argparse.ArgumentParser,
    max_new_tokens: int = 256,
    several: bool = False,
    budget: int | None = None,
) -> None:
    """Add the options of decoding that hold for one prompt and for a file of them.

    Args:
      max_new_tokens: default of --max-new-tokens.
      several: let --temperature take several values.
      budget: default of --budget, see `add_budget`.
    """
    add = parser.add_argument
    add_max_new_tokens(parser, max_new_tokens)
    if several:
        add_temperatures(parser)
    else:
        add("--temperature", type=float, default=0.0, help=f"0 decodes greedily {DEFAULT}")
    add("--top-k", type=int, help="sample among the k most probable tokens")
    add("--top-p", type=float, help="sample among the most probable tokens of this total mass")
    add("--min-p", type=float, help="drop tokens below this fraction of the highest probability")
    add_seed(parser)
    add("--ignore-eos", action="store_true", help="do not stop at the model's end-of-text tokens")
    add_budget(parser, budget)
    add(
        "--block-size",
        type=int,
        help="slots of a block drafter's block, the anchor included (default: as trained)",
    )
    add(
        "--depth",
        type=int,
        help="longest drafted path of a drafter that works in steps (default: the drafter's own)",
    )
    add("--acceptance", default="match", help=f"match, sequential or rejection {DEFAULT}")
    add("--capacity", type=int, help="rows of the key-value caches (default: what the call needs)")
    add_score_temperature(parser)


def add_call(parser: argparse.ArgumentParser) -> None:
    """Add all options of a call of one prompt; `values.collect_call` reads them."""
    add = parser.add_argument
    add_template(parser)
    add_decode(parser)
    add("--stop", action="append", default=[], metavar="TEXT", help="stop at this text; repeatable")
    add(
        "--stop-id",
        action="append",
        default=[],
        type=int,
        metavar="ID",
        help="stop at this token id; repeatable",
    )
    for name, default, text in _PENALTIES:
        add(name, type=type(default), default=default, help=f"{text} {DEFAULT}")
    add_builder(parser)
    add(
        "--coupled",
        choices=("on", "off"),
        default="on",
        help=f"draft under the target's sampling noise; changes speed, never text {DEFAULT}",
    )
    add_lookup(parser)
    add_policy(parser)


_PENALTIES = (
    ("--presence-penalty", 0.0, "subtract this from the logits of generated tokens"),
    ("--frequency-penalty", 0.0, "subtract this for each time that a token was generated"),
    (
        "--repetition-penalty",
        1.0,
        "divide positive logits of tokens in the prompt or the text by this, and multiply negative "
        "ones",
    ),
    ("--min-tokens", 0, "tokens before which nothing ends the text"),
)


def add_builder(parser: argparse.ArgumentParser) -> None:
    """Add how candidates become a tree."""
    parser.add_argument(
        "--builder",
        help="how candidates become a tree: chain, best_first, expand, beam, static, dynamic, "
        "lattice or rank_guided, with +SCORE and /SETTINGS, as in expand/w3/fanout=top2gap, "
        "best_first+hybrid0.3, static/paths=[[0],[0,0],[1]] or static/paths=tree.json "
        "(default: the one that suits the drafter)",
    )


def add_lookup(parser: argparse.ArgumentParser) -> None:
    """Add --lookup; `values.choose_lookup` gives what `jaxspec.Speculation` takes."""
    parser.add_argument(
        "--lookup",
        choices=("auto", "on", "off", "suffix"),
        default="auto",
        help="mix prompt lookup, or the most frequent continuation (suffix), into what the drafter "
        f"proposes; auto: prompt lookup if rounds are chosen by cost {DEFAULT}",
    )


def add_chat(parser: argparse.ArgumentParser) -> None:
    """Add how chat models are asked the prompts of a file, see `asking.read_prompts`."""
    parser.add_argument(
        "--chat",
        nargs="?",
        const="on",
        choices=("on", "off"),
        help="put prompts into the model's chat template, if it has one "
        "(default: on for public benchmarks and conversations)",
    )
    parser.add_argument(
        "--boxed",
        choices=("on", "off"),
        help="ask chat models to put the answers of mathematical problems into \\boxed{} "
        "(default: on for MATH-500 and AIME, off for GSM8K)",
    )


def add_budget(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """Add the verification budget; None chooses the rows of every round by cost."""
    chosen = DEFAULT if default else "(default: chosen by cost in every round)"
    parser.add_argument(
        "--budget",
        type=int,
        default=default,
        help=f"rows that the target verifies per round, the root included {chosen}",
    )


def add_max_new_tokens(parser: argparse.ArgumentParser, default: int = 256) -> None:
    """Add the limit of generated tokens."""
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=default,
        help=f"generate at most this many tokens per prompt {DEFAULT}",
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add the seed of sampling."""
    parser.add_argument("--seed", type=int, default=0, help=f"seed of sampling {DEFAULT}")


def add_score_temperature(parser: argparse.ArgumentParser) -> None:
    """Add the divisor of draft logits."""
    parser.add_argument(
        "--score-temperature",
        type=float,
        help="divide draft logits by this when scoring paths; below 1 makes deeper trees "
        "(default: the policy's, else the drafter's own)",
    )


def add_temperatures(parser: argparse.ArgumentParser) -> None:
    """Add --temperature for measurements at several temperatures."""
    parser.add_argument(
        "--temperature",
        type=parse.parse_temperatures,
        default=(0.0,),
        help="0 decodes greedily; a list such as 0,1 measures each in turn (default: 0)",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a policy by name."""
    parser.add_argument(
        "--policy",
        help="decides how much each round drafts and verifies, up to --budget: "
        f"{AUTOMATIC}, {', '.join(policy_forms())}, or the folder of a saved policy. Measures what "
        "rounds cost if the policy needs it, and keeps the result (see `jaxspec calibrate`)",
    )


def add_repeats(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    """Add the number of repeats; `what` says what is repeated."""
    parser.add_argument("--repeats", type=int, default=default, help=f"{what} {DEFAULT}")


def add_scramble(parser: argparse.ArgumentParser, whose: str) -> None:
    """Add the control with drafters that predict nothing; `whose` says which are shuffled."""
    parser.add_argument(
        "--scramble",
        type=int,
        metavar="SEED",
        help=f"shuffle the weights of {whose}: a control that costs as much and predicts nothing",
    )


def add_json_file(
    parser: argparse.ArgumentParser, what: str = "write settings and results to this file"
) -> None:
    """Add the option that names a JSON file to write; `what` says what it holds."""
    parser.add_argument("--json", type=Path, metavar="OUT.json", help=what)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a picture to write."""
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="OUT.png",
        help="plot the results to this file; needs matplotlib",
    )
