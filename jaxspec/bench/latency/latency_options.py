"""Options of `jaxspec bench latency`: defaults by device, and the architecture that they name."""

from __future__ import annotations

import dataclasses

from jaxspec.bench.architectures import DRAFTER, architecture, swap_drafter
from jaxspec.bench.latency.pieces import TreeMethod
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.builders import make_builder
from jaxspec.core.params import Spec
from jaxspec.targets.layouts.quant import check_kind
from jaxspec.tuner.calibrate.ceilings import default_platform
from jaxspec.zoo.checkpoint import default_dtype

# Heads that differ from the published size: the one that ships with the model.
HEADS = {"mini": {"block_size": 8, "drafter_layers": 2}}
DEFAULTS = {
    "gpu": {
        "widths": (1, 8, 16, 32, 64, 128, 256),
        "contexts": (512, 1024, 2048, 8192, 32768),
        "minutes": 8.0,
    },
    "cpu": {"widths": (1, 8, 32), "contexts": (512,), "minutes": 8.0},
}

_READ = ("drafter", "builder", "depth")


@dataclasses.dataclass(frozen=True)
class LatencyOptions:
    """Options of a measurement; None means the default of the device.

    Attributes:
      arch: one of `jaxspec.bench.architectures`.
      method: how to draft, see `read_method`.
      layers: use only this many target layers, for a quick try.
      dtype: dtype of weights and caches.
      quantize: `int8`, `fp8` or None.
      batch: number of sequences.
      widths: numbers of tree rows.
      contexts: numbers of cached tokens.
      repeats: samples of each figure.
      minutes: stop starting new measurements after this time.
      histogram: shares of rounds by tokens committed, see `forced.read_histogram`; None: rounds
        commit what the weights accept.
    """

    arch: str = "mini"
    method: str = DRAFTER
    layers: int | None = None
    dtype: str | None = None
    quantize: str | None = None
    batch: int = 1
    widths: tuple[int, ...] | None = None
    contexts: tuple[int, ...] | None = None
    repeats: int = 5
    minutes: float | None = None
    histogram: tuple[float, ...] | None = None


def resolve_options(settings: LatencyOptions) -> tuple[LatencyOptions, Spec]:
    """Fill in the device's defaults; return the settings and the architecture that they name.

    Raises:
      ValueError: the architecture or quantisation is unknown, or a number is out of range.
    """
    spec = architecture(settings.arch, **HEADS.get(settings.arch, {}))
    limit = spec.target.max_positions
    check_kind(settings.quantize)
    chosen = {
        key: value
        for key, value in DEFAULTS[default_platform()].items()
        if getattr(settings, key) is None
    }
    if "contexts" in chosen:
        chosen["contexts"] = tuple(context for context in chosen["contexts"] if context <= limit)
    spec = swap_drafter(spec, read_method(settings.method).drafter)
    settings = dataclasses.replace(settings, **chosen, dtype=settings.dtype or default_dtype())
    for name in ("batch", "repeats", "minutes"):
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} is {getattr(settings, name)}: give more than 0")
    for width in settings.widths:
        if not 1 <= width <= 1024:
            raise ValueError(f"width {width}: give 1 to 1024 tree rows, the root included")
    for context in settings.contexts:
        if not 1 <= context <= limit:
            raise ValueError(
                f"context {context}: {settings.arch} has {limit} positions, give 1 to {limit}"
            )
    if settings.layers is not None:
        if not 1 <= settings.layers <= spec.target.num_layers:
            raise ValueError(
                f"layers is {settings.layers}: {settings.arch} has {spec.target.num_layers}, give 1 to that many"
            )
        spec = shorten_target(spec, settings.layers)
    return settings, spec


def read_method(text: str) -> TreeMethod:
    """Read the name of a drafter, or a method as `jaxspec bench` takes it, without its rows.

    Raises:
      ValueError: it has another form.
    """
    if "-" not in text:
        return TreeMethod(text)
    options = parse_methods(text, budget=1)[-1].options
    if options["budget"] != 1 or set(options) - {*_READ, "budget", "coupled"}:
        raise ValueError(
            f"--method {text}: give a drafter, a builder and a depth, as in eagle3-dynamic/d7/w10; "
            "--widths gives the rows"
        )
    drafter, builder, depth = (options.get(name) for name in _READ)
    return TreeMethod(drafter, make_builder(builder), depth)


def shorten_target(spec: Spec, layers: int) -> Spec:
    """Cut the target to `layers` layers; the drafter reads as many features as before, some twice."""
    name, config = spec.drafters[0]
    features = tuple(min(layer, layers - 1) for layer in config.feature_layers)
    target = spec.target.take_layers(layers)
    config = dataclasses.replace(config, feature_layers=features)
    return dataclasses.replace(spec, target=target, drafters=((name, config),))
