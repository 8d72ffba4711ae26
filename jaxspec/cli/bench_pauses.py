"""`jaxspec bench pauses`: what other bounds of the controller's pauses would cost."""

from __future__ import annotations

import argparse

from jaxspec.cli import bench_prompts, options, values


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "pauses",
        run,
        "replay when the default pauses drafting, with other bounds, on recorded rounds",
        "jaxspec bench pauses --method jetspec-chain@4 --first 1.5,3,6 --limit 1 --max-new-tokens 32",
    )
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add("--method", required=True, help="drafter, builder and budget, as for bench")
    add("--first", default="1.5,3,6", help=f"values before the first round {default}")
    add("--most", default="6,12", help=f"largest values {default}")
    add("--trial", default="0.75", help=f"values after a pause {default}")
    add("--costs", default="", help="times of a drafted round to assume too, in rounds of ar")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Record, replay and print a table."""
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.policies.compare_pauses import measure_pauses, render_pauses

    values.check_folders(arguments, "json")
    grid = [values.parse_numbers(arguments, name) for name in ("first", "most", "trial")]
    params = values.load_params(arguments)
    method = parse_methods(arguments.method, budget=8, spec=params.spec)[-1]
    if method.options["method"] == "ar" or method.options.get("policy"):
        raise ValueError(f"{arguments.method!r}: give a drafted method without a policy")
    given = bench_prompts.collect_options(arguments)
    report = measure_pauses(
        params,
        bench_prompts.read_prompts(arguments, values.load_model_tokenizer(params.spec)),
        method,
        grid=grid,
        costs=values.parse_numbers(arguments, "costs") if arguments.costs else (),
        options=given,
        progress=values.show_progress,
    )
    values.show_progress("")
    values.save_json(arguments.json, report | {"options": given, "model": arguments.model})
    print(render_pauses(report))
    return 0
