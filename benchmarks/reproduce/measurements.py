"""All measurements by name."""

from __future__ import annotations

from benchmarks.reproduce import (
    measure_adapt,
    measure_decodes,
    measure_devices,
    measure_ltd,
    measure_trained,
)
from benchmarks.reproduce.measurement import Measurement

MEASUREMENTS: dict[str, Measurement] = {
    one.name: one
    for module in (measure_decodes, measure_devices, measure_adapt, measure_trained, measure_ltd)
    for one in module.MEASUREMENTS
}


def with_sources(names: tuple[str, ...]) -> list[str]:
    """Return measurements and those whose files they read, in the order to run them."""
    found: list[str] = []
    for name in names:
        found += [*with_sources(MEASUREMENTS[name].after), name]
    return list(dict.fromkeys(found))
