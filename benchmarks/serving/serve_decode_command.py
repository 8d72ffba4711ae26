"""`python -m benchmarks serve-decode`: the serving engine beside `jaxspec.decode`."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench import loads
from jaxspec.cli.bench.serve import add_engine, add_lengths, make_requests
from jaxspec.cli.shared import options, values

EXAMPLE = "smollm2-135m --requests 6 --min-new-tokens 128 --max-new-tokens 128"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    options.add_model(parser)
    add_engine(parser)
    add_lengths(parser)
    loads.add_settings(parser, requests=40)
    options.add_repeats(parser, 3, "number of times that each side answers all requests")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.serving.compare_decode import compare_decode, render_decode
    from jaxspec.call.arguments import check_count
    from jaxspec.serve import make_engine

    check_count("repeats", arguments.repeats)
    params = values.load_params(arguments)
    requests = make_requests(arguments, params)
    engine = make_engine(params, slots=arguments.slots, queue=len(requests))
    values.show_progress("compiling and measuring rounds")
    engine.warm_up()
    records = compare_decode(
        params,
        engine,
        requests,
        (1, 2, 4),
        repeats=arguments.repeats,
        progress=values.show_progress,
    )
    settings = values.collect_settings(arguments, "json")
    return {"settings": settings, "records": records}, render_decode(records)
