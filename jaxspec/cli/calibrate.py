"""The subcommand `calibrate` of the `jaxspec` command, and the option `--policy` of others."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from jaxspec.cli import options as cli_options
from jaxspec.policies.registry import policy_forms


def add_policy(parser: argparse.ArgumentParser) -> None:
    """The option that chooses a policy by name."""
    parser.add_argument(
        "--policy",
        help="what decides how much each round drafts and verifies, up to --budget: "
        f"{', '.join(policy_forms())}, or the folder of a saved policy. `best` and BASTION's rules "
        "weigh rows by their measured time, which is measured once and kept, see `jaxspec "
        "calibrate`",
    )


def add_commands(commands) -> None:
    """Register `calibrate` with argparse's `commands`."""
    parser = commands.add_parser(
        "calibrate",
        help="measure what rounds take here, for --policy; kept per device, model and JAX",
    )
    parser.set_defaults(run=_calibrate)
    parser.add_argument("model", help="mini, a hub id or a directory")
    parser.add_argument(
        "drafter", help="a shipped drafter's name, hub id or directory, or prompt_lookup"
    )
    parser.add_argument("--builder", help="as of generate (default: what suits the drafter)")
    parser.add_argument(
        "--budget", type=int, default=32, help="rows of the largest tree (default: %(default)s)"
    )
    parser.add_argument(
        "--depth",
        type=int,
        help="longest drafted path of drafters that work in steps, as of generate",
    )
    parser.add_argument(
        "--block-size", type=int, help="slots of the drafter's block, as of generate"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="of the decodes to come (default: %(default)s)",
    )
    parser.add_argument(
        "--batch", type=int, default=1, help="sequences decoded together (default: %(default)s)"
    )
    parser.add_argument(
        "--contexts",
        type=cli_options.parse_sizes,
        help="cached tokens to measure at, comma-separated (default: 64,256,... as far as the model goes)",
    )
    parser.add_argument(
        "--repeats", type=int, default=9, help="samples of each time (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device"
    )


def policy_of(params, name: str | None, options: Mapping[str, Any]):
    """The policy that `--policy` names; None without the option, or for autoregressive decoding.
    Round costs that it needs and are not known are measured now.

    Args:
      options: of `jaxspec.decode`.
    """
    from jaxspec.bench.calibrate import policy_for

    if name is None:
        return None
    method = options["method"] or (params.spec.drafters[0][0] if params.spec.drafters else "ar")
    if method == "ar":
        return None
    return policy_for(params, method, name, options)


def _calibrate(arguments: argparse.Namespace) -> int:
    import jaxspec
    from jaxspec.bench.calibrate import measured, table_path, timed
    from jaxspec.core.params import WEIGHTLESS

    weightless = arguments.drafter in WEIGHTLESS
    params = jaxspec.load(
        arguments.model, drafter=None if weightless else arguments.drafter, dtype=arguments.dtype
    )
    method = arguments.drafter if weightless else params.spec.drafters[0][0]
    options = timed(vars(arguments)) | ({"batch": arguments.batch} if arguments.batch != 1 else {})
    measurement = {"repeats": arguments.repeats, "contexts": arguments.contexts}
    table = measured(params, method, **measurement, **options)
    print(
        f"{'cached tokens':>13} {'drafting':>9} {'ar':>9} "
        + " ".join(f"{width:>4} rows" for width in table.widths[1:])
    )
    for column, context in enumerate(table.contexts.tolist()):
        times = [table.draft[column], *table.verify[0, :, column]]
        print(f"{context:13.0f} " + " ".join(f"{1e3 * float(time):6.3f} ms" for time in times))
    print(f"kept in {table_path(params, method, **options)}")
    return 0
