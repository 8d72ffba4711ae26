"""Reports of programs compiled ahead of time, as a table for people."""

from __future__ import annotations

import collections
import re
from typing import Any

from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.bench.report.table import tabulate
from pallas_kernels.aot.gpus import find_gpu


def render_compiled(reports: list[dict[str, Any]]) -> str:
    """Render reports as a table with a column for each, and list the parts of the last program's
    round.
    """
    shown = [one for one in reports if one["compiles"]]
    failed = [
        f"{_title(one)} does not compile: {one['error']}" for one in reports if not one["compiles"]
    ]
    if not shown:
        return "\n".join(failed)
    rows = [[label, *map(show, shown)] for label, show in _ROWS.items()]
    if any("common" in one["traffic"] for one in shown):
        rows += [[label, *map(show, shown)] for label, show in _COMMON_ROWS.items()]
    if any(one["collectives"] for one in shown):
        rows += [[label, *map(show, shown)] for label, show in _SHARED_ROWS.items()]
    if len({one["gpu"] for one in shown}) > 1:
        rows.insert(0, ["GPU", *(one["gpu"] for one in shown)])
    lines = [tabulate(["", *map(_title, shown)], rows).to_text()]
    last = shown[-1]
    if last["round"]:
        parts = ", ".join(
            f"{part} {number}" for part, number in last["round"]["groups"].items() if number > 1
        )
        of = "chunk" if last["part"] == "prefill" else "round"
        lines += ["", f"launches of a {of} of {_title(last)} by part: {parts}"]
        for one in last["round"]["inner"]:
            parts = ", ".join(
                f"{one[part]} {part}" for part in ("kernels", "copies", "buffers", "outside")
            )
            lines.append(f"a turn of a loop in it: {parts}")
    if last["large"]:
        lines += [
            "",
            f"large results of {_title(last)} (* only moves data):",
            *_large(last["large"]),
        ]
    return "\n".join([*failed, *lines])


def render_partitioned(reports: list[dict[str, Any]]) -> str:
    """Render reports of programs for virtual devices: what each holds, and what they exchange."""
    shown = [one for one in reports if one["compiles"]]
    lines = [
        f"{_title(one)} does not compile: {one['error']}" for one in reports if not one["compiles"]
    ]
    rows = [[label, *map(show, shown)] for label, show in (_SHARED_ROWS | _HELD_ROWS).items()]
    table = tabulate(["", *map(_title, shown)], rows).to_text()
    return "\n".join([*lines, table] if shown else lines)


def _title(one: dict[str, Any]) -> str:
    options = one["options"]
    if one["part"] == "prefill":
        return f"{options['drafter']}, prefill of {options['capacity']} rows"
    served = f", visit of {options['batch']} slots" if one["part"] == "visit" else ""
    if options["drafter"] == "ar":
        return "ar" + served
    only = "drafting of " if one["part"] == "draft" else ""
    names = ("drafter", "builder", "budget", "policy", "quantize", "cache_dtype")
    named = (options.get(name) for name in names)
    return only + " ".join(str(each) for each in named if each is not None) + served


def _large(results: list[dict[str, Any]]) -> list[str]:
    """List results by size and part of the program, one line for all layers."""
    parts = [
        re.sub(r"\d+", "*", re.sub(r"^jit\((run|prefill)\)/", "", each["source"])) or each["name"]
        for each in results
    ]
    found = collections.Counter(
        (each["bytes"], each["moves"], part) for each, part in zip(results, parts, strict=True)
    )
    return [
        f"{number:4d} x {size / 2**20:.1f} MiB {'*' if moves else ' '} {part}"
        for (size, moves, part), number in found.items()
    ]


def _mib(number: int) -> str:
    return f"{number / 2**20:.1f}"


def _of_round(field: str):
    def show(one: dict[str, Any]) -> str:
        # Drafting alone may have no loop.
        found = one["program"] if one["part"] == "draft" else one["round"]
        return "-" if found is None else str(found[field])

    return show


def _common(one: dict[str, Any]) -> dict[str, int]:
    """Return the traffic of a round that takes no fallback."""
    return one["traffic"].get("common", one["traffic"])


def _least_time(one: dict[str, Any], common: bool = False) -> str:
    """Show the microseconds that the traffic of a round takes at peak bandwidth."""
    traffic = _common(one) if common else one["traffic"]
    moved = traffic["read"] + traffic["written"]
    return f"{1e6 * moved / find_gpu(one['gpu']).bandwidth:.0f}"


def _spills(one: dict[str, Any]) -> str:
    found = one.get("spills")
    if not found or not found["checked"]:
        return found["reason"] if found else "-"
    return (
        f"{len(found['spilling'])} of {found['checked']} (most registers {found['most_registers']})"
    )


def _sums(one: dict[str, Any]) -> str:
    """Show how many sums of hidden states devices exchange, and of which shape."""
    wide = [each for each in one["collectives"] if each["shape"].count(",") == 2]
    found = collections.Counter(x["shape"] for x in wide if x["kind"] == "all-reduce")
    return ", ".join(f"{number} x {shape}" for shape, number in found.items()) or "-"


def _experts(one: dict[str, Any]) -> str:
    """Show what each device holds of a mixture of experts."""
    if ARCHITECTURES[one["options"]["arch"]].moe is None:
        return "-"
    return "some, whole" if one["experts"] == "expert" else "channels of all"


def _largest_gather(one: dict[str, Any]) -> str:
    sizes = [each["bytes"] for each in one["collectives"] if each["kind"] != "all-reduce"]
    return f"{len(sizes)}, {max(sizes) / 2**10:.1f}" if sizes else "-"


def _arguments(one: dict[str, Any]) -> str:
    return _mib(one["memory"]["arguments"])


def _aliased(one: dict[str, Any]) -> str:
    return f"{_mib(one['memory']['aliased'])} of {_mib(one['cache_bytes'])}"


def _compilation(one: dict[str, Any]) -> str:
    return f"{one['seconds']['lower'] + one['seconds']['compile']:.1f}"


_HELD_ROWS = {
    "arguments of each, MiB": _arguments,
    "aliased of caches, MiB": _aliased,
    "compilation, s": _compilation,
}
_SHARED_ROWS = {
    "devices that share the target": lambda one: str(one["devices"]),
    "of experts, each has": _experts,
    "sums over them": _sums,
    "gathers, and KiB of the largest": _largest_gather,
}
_COMMON_ROWS = {
    "without a fallback: kernels": lambda one: str(_common(one)["kernels"]),
    "read, MiB": lambda one: _mib(_common(one)["read"]),
    "written, MiB": lambda one: _mib(_common(one)["written"]),
    "of both at peak bandwidth, us": lambda one: _least_time(one, common=True),
}
_ROWS = {
    "tree attention": lambda one: one["tree_attention"],
    "kernels a round": _of_round("kernels"),
    "copies and fills a round": _of_round("copies"),
    "outside command buffers": _of_round("outside"),
    "command buffers a round": _of_round("buffers"),
    "loops driven by the host": _of_round("loops"),
    "read a round, MiB": lambda one: _mib(one["traffic"]["read"]),
    "written a round, MiB": lambda one: _mib(one["traffic"]["written"]),
    "of both at peak bandwidth, us": _least_time,
    "matrix products a round, GFLOP": lambda one: f"{one['traffic']['flops'] / 1e9:.1f}",
    "arguments, MiB": _arguments,
    "temporary, MiB": lambda one: _mib(one["memory"]["temporary"]),
    "outputs, MiB": lambda one: _mib(one["memory"]["outputs"]),
    "aliased of caches, MiB": _aliased,
    "large results that only move data": lambda one: str(
        sum(each["moves"] for each in one["large"])
    ),
    "kernels that spill registers": _spills,
    "compilation, s": _compilation,
    "its processor time, s": lambda one: f"{one['seconds']['processor']:.1f}",
}
