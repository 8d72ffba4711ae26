"""`jaxspec calibrate`: measure what rounds cost on this machine, or compute it by the roofline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import options, parse, values
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
    add("drafter", help="name of a shipped drafter, hub id, directory, prompt_lookup or suffix")
    add("--builder", help="see generate (default: the one that suits the drafter)")
    add(
        "--budget",
        type=int,
        help="rows that the target verifies per round, the root included "
        "(default: the last of --widths, else 32)",
    )
    add(
        "--widths",
        type=parse.parse_counts,
        help="numbers of rows to compile verification for and to measure, as in 1-16,24,32; 1 and "
        "--budget are added (default: powers of two)",
    )
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
        help="measure drafting alone, and keep the bare roofline for verification",
    )
    add(
        "--draft-ms",
        type=float,
        metavar="MS",
        help="with --roofline: milliseconds of drafting, so that nothing is measured",
    )
    add("--device", choices=tuple(DEVICES), help="peak rates by name, from data sheets")
    add("--peak-flops", type=float, metavar="F", help="operations per second, as in 312e12")
    add(
        "--bandwidth",
        type=float,
        metavar="B",
        help="bytes of memory per second, as in 1935e9 (default of both rates: measured here)",
    )
    options.add_json_file(group, "write the costs to this file too, with the errors of a fit")
    options.add_plot(group)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table in milliseconds and the path of the kept file."""
    import jaxspec
    from jaxspec.core.params import WEIGHTLESS
    from jaxspec.costs.files import save_costs
    from jaxspec.tuner.calibrate.by_rows import table_path, timed

    rates = _read_rates(arguments)
    _fix_sizes(arguments)
    values.check_folders(arguments, "json", "plot")
    weightless = arguments.drafter in WEIGHTLESS
    params = jaxspec.load(
        arguments.model, drafter=None if weightless else arguments.drafter, dtype=arguments.dtype
    )
    method = arguments.drafter if weightless else params.spec.default_drafter
    given = timed(vars(arguments)) | ({"batch": arguments.batch} if arguments.batch != 1 else {})
    table = _make_table(arguments, params, method, rates, given)
    if arguments.json:
        save_costs(table, arguments.json)
    if arguments.plot:
        from jaxspec.view.cost_plot import plot_fit

        plot_fit(table, arguments.plot)
    _print_table(table)
    print(f"kept in {table_path(params, method, **given)}")
    return 0


def _fix_sizes(arguments: argparse.Namespace) -> None:
    """Choose the budget, and add 1 and the budget to the widths that are given.

    Raises:
      ValueError: a width exceeds the budget.
    """
    widths = arguments.widths or ()
    budget = arguments.budget or max(widths, default=32)
    if max(widths, default=1) > budget:
        raise ValueError(f"--widths reach {max(widths)} rows: give --budget {max(widths)} or more")
    arguments.budget = budget
    if widths:
        arguments.widths = tuple(sorted({1, *widths, budget}))


def _make_table(
    arguments: argparse.Namespace,
    params: Params,
    drafter: str,
    rates: PeakRates | None,
    given: dict[str, Any],
) -> RoundCosts:
    """Measure, fit or compute the costs, and keep them."""
    from jaxspec.tuner.calibrate.by_roofline import fit_table, make_bare_table
    from jaxspec.tuner.calibrate.by_rows import measured

    names = ("repeats", "contexts", "widths")
    measurement: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    if arguments.fit:
        fitted = fit_table(params, drafter, _find_rates(rates, params), **measurement, **given)
        _print_fit(fitted)
        return fitted.costs
    if arguments.roofline:
        device, draft = _find_rates(rates, params), arguments.draft_ms
        seconds = None if draft is None else draft / 1e3
        return make_bare_table(params, drafter, device, draft=seconds, **measurement, **given)
    table = measured(params, drafter, **measurement, **given)
    _renew_default(params, drafter, arguments)
    return table


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
    if arguments.draft_ms is not None and not arguments.roofline:
        raise ValueError("--draft-ms belongs to the bare roofline: add --roofline, or leave it out")
    if arguments.draft_ms is not None and not 0 <= arguments.draft_ms < float("inf"):
        raise ValueError(f"--draft-ms is {arguments.draft_ms}: give milliseconds of at least 0")
    if arguments.plot and not arguments.fit:
        raise ValueError("--plot shows a fit: add --fit, or leave it out")
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
    names = {"bare": "bare roofline", "ema": "with EMA", "fit": "fit", "ema_fit": "fit with EMA"}
    names |= {"left_out": "fit to the other contexts"}
    errors = {names[name]: error for name, error in fitted.errors.items() if error is not None}
    shown = ", ".join(f"{name} {1e3 * error:.4g} ms" for name, error in errors.items())
    print(f"root mean square error of verification: {shown}")


def _print_table(table: RoundCosts) -> None:
    print(
        f"{'cached tokens':>13} {'drafting':>9} {'ar':>9} "
        + " ".join(f"{width:>4} rows" for width in table.compiled[1:])
    )
    rows = [table.widths.index(width) for width in table.compiled]
    for column, context in enumerate(table.contexts.tolist()):
        times = [table.draft[column], *table.verify[0, rows, column]]
        print(f"{context:13.0f} " + " ".join(f"{1e3 * float(time):6.3f} ms" for time in times))
