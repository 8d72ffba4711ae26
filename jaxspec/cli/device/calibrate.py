"""`jaxspec calibrate`: measure what rounds cost on this machine, or compute it by the roofline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import options, parse
from jaxspec.costs.roofline import DEVICES

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.costs.fit_costs import FittedCosts
    from jaxspec.costs.roofline import PeakRates
    from jaxspec.costs.round_costs import RoundCosts


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
    options.add_budget(parser, 32)
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
        type=parse.parse_integers,
        help="numbers of cached tokens to measure at, as in 64,1k "
        "(default: 64,256,... up to the model's positions)",
    )
    options.add_repeats(parser, 9, "samples per figure")
    options.add_dtype(parser)
    _add_roofline(parser)


def _add_roofline(parser: argparse.ArgumentParser) -> None:
    """Add the options of BASTION's cost model."""
    group = parser.add_argument_group(
        "BASTION's cost model", "keep costs of the roofline in place of measured ones"
    )
    add, kind = group.add_argument, group.add_mutually_exclusive_group()
    kind.add_argument(
        "--fit",
        action="store_true",
        help="measure rounds, fit the roofline to their verification, and keep the fitted costs",
    )
    kind.add_argument(
        "--roofline",
        action="store_true",
        help="measure no rounds: keep the bare roofline, for which drafting takes no time",
    )
    add("--device", choices=tuple(DEVICES), help="peak rates by name, from data sheets")
    add("--peak-flops", type=float, metavar="F", help="operations per second, as in 312e12")
    add(
        "--bandwidth",
        type=float,
        metavar="B",
        help="bytes of memory per second, as in 1935e9 (default of both rates: measured here)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table in milliseconds and the path of the kept file."""
    import jaxspec
    from jaxspec.core.params import WEIGHTLESS
    from jaxspec.tuner.calibrate.by_roofline import fit_table, make_bare_table
    from jaxspec.tuner.calibrate.by_rows import measured, table_path, timed

    rates = _read_rates(arguments)
    weightless = arguments.drafter in WEIGHTLESS
    params = jaxspec.load(
        arguments.model, drafter=None if weightless else arguments.drafter, dtype=arguments.dtype
    )
    method = arguments.drafter if weightless else params.spec.default_drafter
    given = timed(vars(arguments)) | ({"batch": arguments.batch} if arguments.batch != 1 else {})
    measurement: dict[str, Any] = {"repeats": arguments.repeats, "contexts": arguments.contexts}
    if arguments.fit:
        fitted = fit_table(params, method, _find_rates(rates, params), **measurement, **given)
        table = fitted.costs
        _print_fit(fitted)
    elif arguments.roofline:
        device = _find_rates(rates, params)
        table = make_bare_table(params, method, device, contexts=arguments.contexts, **given)
    else:
        table = measured(params, method, **measurement, **given)
        _renew_default(params, method, arguments)
    _print_table(table)
    print(f"kept in {table_path(params, method, **given)}")
    return 0


def _renew_default(params: Params, drafter: str, arguments: argparse.Namespace) -> None:
    """Measure anew what calls read that leave their budget and policy open."""
    from jaxspec.call.options import group_options
    from jaxspec.call.session import prepare
    from jaxspec.tuner.tuner import process_tuner

    tokens = min(64, params.spec.target.max_positions // 2)
    names = ("temperature", "depth", "block_size")
    options = {name: getattr(arguments, name) for name in names}
    given = group_options(drafter=drafter, max_new_tokens=tokens, **options)
    session = prepare(params, [[0] * tokens] * arguments.batch, **given)
    tuner = process_tuner()
    if tuner.prepare(session).automatic:
        tuner.calibrate(session)


def _read_rates(arguments: argparse.Namespace) -> PeakRates | None:
    """Return the peak rates that the options name; None: measure them.

    Raises:
      ValueError: options that do not go together, or a rate that is not a positive number.
    """
    from jaxspec.call.arguments import check_positive
    from jaxspec.costs.roofline import PeakRates

    rates = {"--peak-flops": arguments.peak_flops, "--bandwidth": arguments.bandwidth}
    given = {name: rate for name, rate in rates.items() if rate is not None}
    for name, rate in given.items():
        check_positive(name, rate)
    if not (arguments.fit or arguments.roofline):
        if arguments.device or given:
            raise ValueError(
                "peak rates belong to BASTION's cost model: add --fit or --roofline, or leave "
                "--device, --peak-flops and --bandwidth out"
            )
        return None
    if arguments.batch != 1:
        raise ValueError("BASTION's cost model counts one sequence: leave --batch out")
    if arguments.device and given:
        raise ValueError("--device names both peak rates: leave --peak-flops and --bandwidth out")
    if len(given) == 1:
        raise ValueError("give both --peak-flops and --bandwidth, or neither to measure them here")
    if arguments.device:
        return DEVICES[arguments.device]
    return PeakRates(*given.values()) if given else None


def _find_rates(rates: PeakRates | None, params: Params) -> PeakRates:
    """Return peak rates, measured if none are given, and print them."""
    from jaxspec.tuner.calibrate.by_roofline import measure_peaks

    found = rates or measure_peaks(params.dtype)
    how = "measured on this device" if rates is None else "given"
    print(f"peak rates, {how}: {found.flops:.4g} FLOP/s, {found.bandwidth:.4g} B/s")
    return found


def _print_fit(fitted: FittedCosts) -> None:
    """Print the coefficients, and the root mean square errors in milliseconds."""
    fit = fitted.fit
    print(
        f"memory  branch: {fit.memory_scale:.4g} * bytes / bandwidth + "
        f"{1e3 * fit.memory_offset:.4g} ms\n"
        f"compute branch: {fit.compute_scale:.4g} * FLOPs / peak + "
        f"{1e3 * fit.compute_offset:.4g} ms"
    )
    errors = {"bare roofline": fitted.bare_error, "fit": fitted.error}
    if fitted.left_out_error is not None:
        errors["fit to the other contexts"] = fitted.left_out_error
    shown = ", ".join(f"{name} {1e3 * error:.4g} ms" for name, error in errors.items())
    print(f"root mean square error of verification: {shown}")


def _print_table(table: RoundCosts) -> None:
    print(
        f"{'cached tokens':>13} {'drafting':>9} {'ar':>9} "
        + " ".join(f"{width:>4} rows" for width in table.widths[1:])
    )
    for column, context in enumerate(table.contexts.tolist()):
        times = [table.draft[column], *table.verify[0, :, column]]
        print(f"{context:13.0f} " + " ".join(f"{1e3 * float(time):6.3f} ms" for time in times))
