"""`jaxspec calibrate`: measure what rounds cost on this machine."""

from __future__ import annotations

import argparse

from jaxspec.cli import options


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "calibrate",
        run,
        "measure what rounds cost on this machine, for --policy; "
        "results are kept per device, model and JAX version",
        "jaxspec calibrate mini jetspec --budget 32",
    )
    add = parser.add_argument
    add("model", help="name of a shipped model, hub id or directory")
    add("drafter", help="name of a shipped drafter, hub id, directory, or prompt_lookup")
    add("--builder", help="see generate (default: the one that suits the drafter)")
    options.add_budget(parser)
    add("--depth", type=int, help="longest drafted path, see generate")
    add("--block-size", type=int, help="slots of a block drafter's block, see generate")
    add(
        "--temperature",
        type=float,
        default=0.0,
        help=f"sampling temperature of the decodes to come {options.DEFAULT}",
    )
    add(
        "--batch",
        type=int,
        default=1,
        help=f"number of sequences decoded together {options.DEFAULT}",
    )
    add(
        "--contexts",
        type=options.parse_integers,
        help="numbers of cached tokens to measure at, as in 64,1k "
        "(default: 64,256,... up to the model's positions)",
    )
    options.add_repeats(parser, 9, "samples per figure")
    options.add_dtype(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table in milliseconds and the path of the kept file."""
    import jaxspec
    from jaxspec.bench.calibrate import measured, table_path, timed
    from jaxspec.core.params import WEIGHTLESS

    weightless = arguments.drafter in WEIGHTLESS
    params = jaxspec.load(
        arguments.model, drafter=None if weightless else arguments.drafter, dtype=arguments.dtype
    )
    method = arguments.drafter if weightless else params.spec.default_method
    given = timed(vars(arguments)) | ({"batch": arguments.batch} if arguments.batch != 1 else {})
    measurement = {"repeats": arguments.repeats, "contexts": arguments.contexts}
    table = measured(params, method, **measurement, **given)
    print(
        f"{'cached tokens':>13} {'drafting':>9} {'ar':>9} "
        + " ".join(f"{width:>4} rows" for width in table.widths[1:])
    )
    for column, context in enumerate(table.contexts.tolist()):
        times = [table.draft[column], *table.verify[0, :, column]]
        print(f"{context:13.0f} " + " ".join(f"{1e3 * float(time):6.3f} ms" for time in times))
    print(f"kept in {table_path(params, method, **given)}")
    return 0
