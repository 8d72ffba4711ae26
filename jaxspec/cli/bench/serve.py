"""`jaxspec bench serve`: compare rules of the serving engine under loads, without HTTP."""

from __future__ import annotations

import argparse
import itertools
import random
from typing import TYPE_CHECKING

from jaxspec.cli.bench import loads
from jaxspec.cli.shared import options, parse, values

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.serve import Engine, ServeRequest


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "bench serve",
        run,
        "compare how the serving engine shares rows among requests, under loads",
        "jaxspec bench serve --drafter dflash --rate 4,8 --requests 40 --repeats 3",
    )
    add = parser.add_argument
    options.add_model(parser)
    add_engine(parser)
    add(
        "--rules",
        type=_parse_rules,
        default=options.RULES,
        help="rules to compare (default: global,equal,fixed,ar)",
    )
    add_lengths(parser)
    add("--budget", type=int, help="most rows of a request in a round (default: the engine's)")
    add("--rounds", type=int, help="most rounds of a visit (default: the engine's)")
    loads.add_loads(parser, requests=40)
    options.add_repeats(parser, 3, "number of times that each load goes to each rule")
    options.add_json_file(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options that `bench serve` and studies of the engine share."""
    add, default = parser.add_argument, options.DEFAULT
    add("--capacity", type=int, default=512, help=f"rows of each slot's caches {default}")
    add("--max-new-tokens", type=int, default=64, help=f"length of each text {default}")
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"{options.PROMPT_FILE} (default: the prompts of `jaxspec demo`)",
    )


def add_lengths(parser: argparse.ArgumentParser) -> None:
    """Add the slots of an engine and the shortest text of `make_requests`."""
    add = parser.add_argument
    add("--slots", type=int, default=8, help=f"requests that decode at once {options.DEFAULT}")
    add(
        "--min-new-tokens",
        type=int,
        help="shortest text; lengths are drawn, because texts of one length end together, which "
        "engines are spared in practice (default: half of --max-new-tokens)",
    )


def _parse_rules(text: str) -> tuple[str, ...]:
    names = parse.parse_names(text)
    if not names or set(names) - set(options.RULES):
        raise argparse.ArgumentTypeError(f"{text!r}: give some of {','.join(options.RULES)}")
    return names


def read_token_ids(arguments: argparse.Namespace, params: Params) -> list[list[int]]:
    """Read the prompts as token ids."""
    from jaxspec.bench.demo import DEMO_PROMPTS
    from jaxspec.call.text.token_ids import to_ids
    from jaxspec.io.text.prompt_files import read_prompts

    prompts = read_prompts(arguments.prompts or DEMO_PROMPTS, params.tokenizer)
    by_domain: dict[str, list] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt.content)
    # Domains take turns, so that every load is a mix of them.
    turns = max(map(len, by_domain.values()))
    mixed = [group[i] for i in range(turns) for group in by_domain.values() if i < len(group)]
    return [to_ids(one, params.tokenizer, params.spec.target) for one in mixed]


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from jaxspec.bench.serve.compare_rules import compare_rules, render_rules
    from jaxspec.call.arguments import check_count

    values.check_folders(arguments, "json")
    check_count("repeats", arguments.repeats)
    params = values.load_params(arguments)
    requests = make_requests(arguments, params)
    sent = loads.list_loads(arguments)
    records = compare_rules(
        _make_engines(arguments, params, requests),
        requests,
        sent,
        repeats=arguments.repeats,
        goals=loads.read_goals(arguments),
        progress=values.show_progress,
    )
    settings = values.collect_settings(arguments, "json")
    report = {"settings": settings, "loads": [load._asdict() for load in sent], "records": records}
    values.save_json(arguments.json, report)
    print(render_rules(records, sent))
    return 0


def make_requests(arguments: argparse.Namespace, params: Params) -> list[ServeRequest]:
    """Make `--requests` requests of drawn lengths, which take turns with the prompts."""
    from jaxspec.call.arguments import check_count
    from jaxspec.serve import ServeRequest

    most = check_count("max-new-tokens", arguments.max_new_tokens)
    least = max(1, most // 2) if arguments.min_new_tokens is None else arguments.min_new_tokens
    check_count("min-new-tokens", least, 1, most)
    prompts, draw = read_token_ids(arguments, params), random.Random(arguments.seed)
    return [
        ServeRequest(
            tuple(ids),
            max_new_tokens=draw.randint(least, most),
            temperature=arguments.temperature,
            seed=arguments.seed,
            ignore_eos=True,
        )
        for ids in itertools.islice(itertools.cycle(prompts), arguments.requests)
    ]


def _make_engines(
    arguments: argparse.Namespace, params: Params, requests: list[ServeRequest]
) -> dict[str, Engine]:
    """Make an engine for each rule; refuse requests that it cannot take before anything compiles."""
    from jaxspec.serve import make_engine

    engines = {}
    for rule in arguments.rules:
        engines[rule] = make_engine(
            params,
            slots=arguments.slots,
            capacity=arguments.capacity,
            budget=arguments.budget,
            rule=rule,
            queue=arguments.requests,
            **({} if arguments.rounds is None else {"rounds": arguments.rounds}),
        )
        for request in requests:
            engines[rule].check(request)
    for rule, engine in engines.items():
        values.show_progress(f"{rule}: compiling and measuring rounds")
        engine.warm_up()
    return engines
