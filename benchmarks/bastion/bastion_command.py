"""`python -m benchmarks bastion`: BASTION's figures and tables with a model at hand."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, parse, values
from jaxspec.costs.roofline import DEVICES

EXAMPLE = "calibration --budget 8 --repeats 3"
FIGURES = ("surrogate", "beams", "saturation", "corrections", "published", "calibration", "peaks")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    add("figure", choices=FIGURES, help="what to measure")
    options.add_model(parser)
    add("--method", default="dflash-best_first", help=f"drafter and builder of the trees {default}")
    add("--published", help="methods to compare with (default: DFlash's chain, EAGLE-3's tree)")
    add("--budget", type=int, default=64, help=f"most rows of a round {default}")
    add("--budgets", type=parse.parse_counts, help="fixed budgets (default: the figure's own)")
    add("--widths", type=parse.parse_counts, help="rows that the controller's rounds compile for")
    add("--device", choices=tuple(DEVICES), help="peak rates, from data sheets (default: measured)")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_score_temperature(parser)
    options.add_repeats(parser, 3, "number of times that each method decodes each prompt")
    options.add_json_file(parser)
    options.add_plot(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    if arguments.plot and arguments.figure not in _PLOTS:
        raise ValueError(f"--plot shows {', '.join(_PLOTS)}: leave it out")
    params = values.load_params(arguments)
    prompts = []
    if arguments.figure != "calibration":
        prompts = bench_prompts.read_prompts(arguments, params.tokenizer)
    report, text = _MEASURE[arguments.figure](arguments, params, prompts)
    report["settings"] = values.collect_settings(arguments, "json", "plot")
    if arguments.plot:
        _PLOTS[arguments.figure](report, arguments.plot)
    return report, text


def _collect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments of `jaxspec.decode`."""
    given = bench_prompts.collect_options(arguments)
    scale = arguments.score_temperature
    return given if scale is None else given | {"score_temperature": scale}


def _common(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what all comparisons by speed take."""
    given = _collect_options(arguments)
    return {
        "method": arguments.method,
        "repeats": arguments.repeats,
        "progress": values.show_progress,
        "options": {name: value for name, value in given.items() if name != "temperature"},
    }


def _sweep(
    arguments: argparse.Namespace, compare: Callable, params: Any, prompts: Any, **more: Any
) -> tuple[dict[str, Any], str]:
    from benchmarks.sweep.sweep_tables import render_sweep

    given = {"temperatures": (arguments.temperature,), **_common(arguments), **more}
    if arguments.budgets:
        given["budgets"] = arguments.budgets
    report = compare(params, prompts, **given)
    return report, render_sweep(report)


def _beams(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.compare import compare_beams

    return _sweep(arguments, compare_beams, params, prompts)


def _saturation(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.compare import SATURATED, measure_saturation

    report, text = _sweep(arguments, measure_saturation, params, prompts)
    found = report["temperatures"][0]["saturation"]
    beyond = "" if found["beyond"] is None else f", {found['beyond']:.3f} of it beyond {SATURATED}"
    return report, f"{text}\n\nfastest at {found['peak']} rows{beyond}"


def _costs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what makes the costs of controllers."""
    widths = arguments.widths and tuple(sorted({1, *arguments.widths, arguments.budget}))
    device = DEVICES.get(arguments.device)
    return {"budget": arguments.budget, "widths": widths, "device": device}


def _corrections(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.compare import compare_corrections

    report, text = _sweep(arguments, compare_corrections, params, prompts, **_costs(arguments))
    named = "\n".join(f"{name}: {method}" for method, name in report["names"].items())
    return report, f"{text}\n\n{named}"


def _published(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.compare import PUBLISHED, compare_published
    from benchmarks.sweep.sweep_tables import tabulate_pairs
    from jaxspec.bench.report.speed_table import tabulate_speeds

    common = _common(arguments)
    common["options"] |= {"temperature": arguments.temperature}
    methods = arguments.published or PUBLISHED
    report = compare_published(params, prompts, methods=methods, **common, **_costs(arguments))
    tables = tabulate_speeds(report["results"]), tabulate_pairs(report["pairs"])
    return report, "\n\n".join(table.to_text() for table in tables)


def _surrogate(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.surrogate import measure_surrogate
    from benchmarks.sweep.sweep_tables import tabulate_surrogate

    given = _collect_options(arguments)
    drafter = arguments.method.partition("-")[0]
    progress = values.show_progress
    report = measure_surrogate(params, prompts, drafter=drafter, options=given, progress=progress)
    return report, tabulate_surrogate(report["surrogate"]).to_text()


def _calibration(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.cost_model import measure_calibration
    from jaxspec.bench.measure.methods import parse_methods

    (method,) = parse_methods(arguments.method, budget=arguments.budget)[1:]
    given = {name: method.options[name] for name in ("drafter", "builder")}
    given |= {"temperature": arguments.temperature, "repeats": arguments.repeats}
    report = measure_calibration(params, **given, **_costs(arguments))
    errors = ", ".join(
        f"{name} {1e3 * error:.4g} ms"
        for name, error in report["errors"].items()
        if error is not None
    )
    return report, (
        f"root mean square errors: {errors}\ncalibration removes {report['cut']:.1%} of the bare "
        f"roofline's, which is below {report['underestimated']:.0%} of the measured times"
    )


def _peaks(arguments, params, prompts) -> tuple[dict[str, Any], str]:
    from benchmarks.bastion.cost_model import find_peaks, measure_worth
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.report.table import fixed, tabulate

    (method,) = parse_methods(arguments.method, budget=arguments.budget)[1:]
    given = _collect_options(arguments)
    progress = values.show_progress
    worth = measure_worth(params, prompts, method=method.options, options=given, progress=progress)
    found = find_peaks(worth)
    head = ("model", "device", "context", "rows", "speed-up")
    rows = [[*map(str, [*one.values()][:4]), fixed(2)(one["speedup"])] for one in found]
    return {"worth": worth, "peaks": found}, tabulate(head, rows).to_text()


def _plot_calibration(report: dict[str, Any], path: Any) -> None:
    from jaxspec.costs.files import decode_costs
    from jaxspec.view.cost_plot import plot_fit

    plot_fit(decode_costs(report["costs"], path), path)


def _plot_surrogate(report: dict[str, Any], path: Any) -> None:
    from benchmarks.bastion.surrogate import plot_surrogate
    from jaxspec.view.adaptation import new_figure, save_figure

    figure, axes, pyplot = new_figure()
    plot_surrogate(report, axes)
    save_figure(figure, path, pyplot)


def _plot_sweep(report: dict[str, Any], path: Any) -> None:
    from benchmarks.sweep.sweep_plot import plot_sweep

    plot_sweep(report, path)


_MEASURE = {
    "surrogate": _surrogate,
    "beams": _beams,
    "saturation": _saturation,
    "corrections": _corrections,
    "published": _published,
    "calibration": _calibration,
    "peaks": _peaks,
}
_PLOTS = {
    "surrogate": _plot_surrogate,
    "saturation": _plot_sweep,
    "corrections": _plot_sweep,
    "calibration": _plot_calibration,
}
