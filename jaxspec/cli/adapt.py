"""`jaxspec adapt`: decode a stream of prompts with a drafter that learns from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import asking, learning, options, parse, values
from jaxspec.core.runtime import distribution

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.io.text.prompt_files import LabelledPrompt

_OPTIONS = ("max_new_tokens", "temperature", "seed", "budget")


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "adapt",
        run,
        "decode a stream of prompts with a drafter that learns from it, and show its updates",
        "jaxspec adapt mini --prompts prompts.jsonl --decider bandit-paired --plot out.png",
    )
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add("--prompts", type=parse.parse_prompts, required=True, help=options.PROMPT_FILE)
    add(
        "--decider",
        default="bandit-paired",
        help="never, osd, always-head, always-full, random, bandit-paper, bandit-paper-full or "
        f"bandit-paired {default}",
    )
    learning.add_sizes(parser)
    options.add_chat(parser)
    options.add_template(parser)
    add("--limit", type=int, help="prompts per domain (default: all)")
    options.add_max_new_tokens(parser)
    add("--temperature", type=float, default=0.0, help=f"0 is greedy decoding {default}")
    options.add_seed(parser)
    options.add_budget(parser)
    add(
        "--state", type=Path, metavar="FOLDER", help="keep published versions here, and go on there"
    )
    options.add_json_file(parser, "write what happened at every query to this file, without text")
    options.add_plot(parser)


def run(arguments: argparse.Namespace) -> int:
    """Decode the prompts, print a line per query and a summary."""
    from jaxspec.adapt import AdaptiveSession, make_decider
    from jaxspec.view.adaptation import plot_events

    values.check_folders(arguments, "json", "plot")
    distribution.require("train", "optax", *(["orbax"] if arguments.state else []))
    sizes = learning.read_sizes(arguments)
    decider = make_decider(arguments.decider, sizes.room)
    params, prompts = load_inputs(arguments)
    session = AdaptiveSession(
        params,
        decider,
        drafter=values.choose_drafter(arguments),
        options=sizes,
        folder=arguments.state,
        seed=arguments.seed,
    )
    given = {name: getattr(arguments, name) for name in (*_OPTIONS, "template")}
    print(asking.describe_template(arguments), end="")
    print("query  tokens/round  tokens/s  version")
    for prompt in prompts:
        session.decode(prompt.content, domain=prompt.domain, **given)
        print(_describe(session.events[-1]), flush=True)
    print(_summarise(session.events))
    values.save_json(arguments.json, {"decider": arguments.decider, "events": session.events})
    if arguments.plot:
        plot_events(session.events, arguments.plot)
    session.close()
    return 0


def load_inputs(arguments: argparse.Namespace) -> tuple[Params, list[LabelledPrompt]]:
    """Load the model with its drafters, and the file of prompts."""
    params = values.load_params(arguments)
    return params, asking.read_prompts(arguments, params.tokenizer)


def _seconds(event: dict[str, Any]) -> float:
    names = ("decode_seconds", "evidence_seconds", "update_seconds")
    return sum(event[name] for name in names)


def _describe(event: dict[str, Any]) -> str:
    """Return a query's line."""
    pace, speed = event["tokens"] / max(event["rounds"], 1), event["tokens"] / _seconds(event)
    line = (
        f"{event['query']:5}  {pace:12.2f}  {speed:8.0f}  {event['version']:7}  {event['domain']}"
    )
    if event["restored"] is not None:
        line += f"  back to version {event['restored']}"
    if "update" in event:
        update = event["update"]
        what = "refused" if update["published"] is None else "published"
        line += f"  {update['action']} update {what} in {update['seconds']:.2f} s"
        if update["held"]:
            line += f", {update['up']} better and {update['down']} worse of {update['held']}"
    return line


def _summarise(events: list[dict[str, Any]]) -> str:
    """Return the summary of a stream."""
    updates = [event["update"] for event in events if "update" in event]
    refused = sum(update["published"] is None for update in updates)
    back = sum(event["restored"] is not None for event in events)
    spent = sum(event["evidence_seconds"] + event["update_seconds"] for event in events)
    total = sum(map(_seconds, events))
    tokens, rounds = (sum(event[name] for event in events) for name in ("tokens", "rounds"))
    return (
        f"{tokens / max(rounds, 1):.3f} tokens per round, {tokens / total:.0f} tokens per second; "
        f"{len(updates)} updates, {refused} refused, {back} taken back; "
        f"{spent / total:.1%} of the time learned"
    )
