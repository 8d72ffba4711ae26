"""`jaxspec bench endpoint`: measure any OpenAI endpoint under a load."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from jaxspec.cli.bench import loads
from jaxspec.cli.shared import options, parse, values
from jaxspec.core.runtime import distribution

if TYPE_CHECKING:
    from jaxspec.bench.endpoint.load import Load


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "bench endpoint",
        run,
        "measure an OpenAI endpoint, this project's or another, as its clients see it",
        "jaxspec bench endpoint --url http://127.0.0.1:8000/v1 --rate 4 --requests 200",
    )
    add, default = parser.add_argument, options.DEFAULT
    add("--url", default="http://127.0.0.1:8000/v1", help=f"address of the endpoint {default}")
    add("--model", help="name of the model, for endpoints that ask for one")
    add("--api-key", help=f"key of the endpoint (default: ${options.KEY_VARIABLE})")
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"{options.PROMPT_FILE} (default: three questions)",
    )
    add("--chat", action="store_true", help="send prompts as chat messages, not as texts")
    add("--max-tokens", type=int, default=128, help=f"longest answer {default}")
    add("--ignore-eos", action="store_true", help="make all answers as long as --max-tokens")
    loads.add_loads(parser, requests=100)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send each load and print its table."""
    import asyncio

    from jaxspec.bench.demo import DEMO_QUESTIONS
    from jaxspec.bench.endpoint.load import run_load
    from jaxspec.bench.endpoint.summary import make_table, summarise
    from jaxspec.io.text.prompt_files import read_prompts

    values.check_folders(arguments, "json")
    distribution.require("serve", "httpx")
    path = arguments.prompts or DEMO_QUESTIONS
    prompts = [one.content for one in read_prompts(path, None, chat=arguments.chat)]
    key, results = arguments.api_key or os.environ.get(options.KEY_VARIABLE) or None, []
    for load in loads.list_loads(arguments):
        sent = run_load(
            arguments.url,
            prompts,
            load,
            key=key,
            **collect_parameters(arguments),
        )
        summary = summarise(asyncio.run(sent), *loads.read_goals(arguments))
        results.append({"load": load._asdict(), **summary})
        print(describe(load, summary))
        print(make_table(summary).to_text() + "\n")
    settings = values.collect_settings(arguments, "json", "api_key")
    values.save_json(arguments.json, {"settings": settings, "results": results})
    return 0 if all(one["completed"] for one in results) else 1


def collect_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of every request."""
    given = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
    given |= {"model": arguments.model} if arguments.model else {}
    return given | ({"ignore_eos": True} if arguments.ignore_eos else {})


def describe(load: Load, summary: dict[str, Any]) -> str:
    """Describe a load and what it gave in a line."""
    errors = "".join(f", {count} x {error}" for error, count in summary["errors"].items())
    return (
        f"{load.describe()}: {summary['completed']} of {summary['requests']} answered{errors}; "
        f"{summary['requests_per_second']:.2f} requests/s, goodput {summary['goodput']:.2f}, "
        f"{summary['tokens_per_second']:.0f} tokens/s"
    )
