"""Options of the commands that send loads of requests: `bench serve` and `bench endpoint`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jaxspec.cli.shared import options, parse

if TYPE_CHECKING:
    from jaxspec.bench.endpoint.load import Load


def add_loads(parser: argparse.ArgumentParser, requests: int) -> None:
    """Add the options that say what loads are sent, with what settings, and what is fast enough.

    Args:
      requests: default of `--requests`.
    """
    add = parser.add_argument
    add_settings(parser, requests)
    add(
        "--rate",
        type=_parse_rates,
        default=(),
        help="requests a second that come at random, as in 1,2,4: an open loop for each",
    )
    add(
        "--clients",
        type=parse.parse_counts,
        default=(),
        help="clients that each wait for their answer, as in 1,8: a closed loop for each",
    )
    for name, what in (("first", "first token"), ("token", "further tokens")):
        text = f"goodput: {what} within this time"
        add(f"--{name}-goal", type=parse.parse_time, metavar="MS", help=text)


def add_settings(parser: argparse.ArgumentParser, requests: int) -> None:
    """Add the number of requests, `requests` by default, and their sampling settings."""
    add, default = parser.add_argument, options.DEFAULT
    add("--requests", type=_parse_count, default=requests, help=f"requests of each load {default}")
    add("--temperature", type=float, default=0.0, help=f"0 is greedy {default}")
    options.add_seed(parser)


def list_loads(arguments: argparse.Namespace) -> list[Load]:
    """List the loads that the options name; without any, one client."""
    from jaxspec.bench.endpoint.load import Load

    count, seed = arguments.requests, arguments.seed
    open_loops = [Load(count, rate=rate, seed=seed) for rate in arguments.rate]
    clients = arguments.clients or (() if open_loops else (1,))
    return open_loops + [Load(count, clients=number, seed=seed) for number in clients]


def read_goals(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    """Return the seconds to the first token and per further token that are fast enough."""
    first, token = arguments.first_goal, arguments.token_goal
    return first and first / 1e3, token and token / 1e3


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number above 0")
    return int(text)


def _parse_rates(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(item) for item in parse.parse_names(text))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rates: write it as in 1,2.5")
    return numbers
