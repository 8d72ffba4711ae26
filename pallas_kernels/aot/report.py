"""Report the contents of a compiled GPU program, from XLA's dump.

The report counts kernels, copies, command buffers, large results and register spills.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any, NamedTuple

from pallas_kernels.aot.hlo import large_results, op_names, trip_counts
from pallas_kernels.aot.ptxas import register_spills
from pallas_kernels.aot.traffic import count_traffic

# Thunks that contain others. All others are kernels, library calls or copies.
_CONTAINERS = {"kCommandBuffer", "kWhile", "kConditional", "kSequential", "kDynamicSliceFusion"}
_COPIES = {"kCopy", "kMemset", "kMemzero", "kMemset32BitValue"}
_LINE = re.compile(r"^(\s*)(\d+): (k\w+)\s*\[[^\]]*\]\s*(?:(\S+) grid:.*)?")
_SECTION = re.compile(r"^(\s*)(condition|body|branch_\d+|false_branch|true_branch)\s*:")


class Thunk(NamedTuple):
    """A step of XLA's GPU runtime: a kernel, a copy, or a container (`body`) of others.

    Attributes:
      kind: XLA's name, for example kCustomKernel.
      ident: number in the dump.
      name: name of a kernel; "" for others.
      body: thunks inside: a loop's body, or a conditional's branches.
      condition: thunks of a loop's condition.
    """

    kind: str
    ident: int
    name: str = ""
    body: tuple = ()
    condition: tuple = ()


class Count(NamedTuple):
    """Launches of a sequence of thunks; a loop counts once per iteration, or once if unknown.

    Attributes:
      kernels, copies: launches inside and outside of command buffers.
      outside: launches of kernels and copies outside of command buffers.
      buffers: launches of command buffers.
      loops: inner loops, which the host drives.
      unknown: inner loops with an unknown number of iterations.
    """

    kernels: int = 0
    copies: int = 0
    outside: int = 0
    buffers: int = 0
    loops: int = 0
    unknown: int = 0

    def plus(self, other: Count, times: int = 1) -> Count:
        """Return the sum of this count and `times` times another."""
        return Count(*(a + times * b for a, b in zip(self, other, strict=True)))


def describe_program(dump: Path, architecture: str, large: int, spills: bool) -> dict[str, Any]:
    """Describe a program from its dump.

    Args:
      dump: folder of XLA's dump, with the optimised HLO in program.txt.
      architecture: name of the GPU's architecture for ptxas.
      large: list results of at least this many bytes.
      spills: count registers and spills with ptxas.

    Returns:
      `program` and `round` (the body of the outermost loop; None without a loop): `Count`s as
      dicts. `round` also has `groups` (launches by the part of the program that they come from) and
      `inner` (the `Count` of the body of each loop in it). `large`: see `aot_hlo.large_results`.
      `traffic`: see `aot_traffic.count_traffic`. `xla_triton`: how many of its fusions XLA compiles
      by Triton itself.
      `spills`: see `aot_ptxas.register_spills`.
    """
    text = (dump / "program.txt").read_text(encoding="utf-8")
    report: dict[str, Any] = {"program": None, "round": None, "large": large_results(text, large)}
    report["traffic"] = count_traffic(text)
    report["xla_triton"] = text.count('"kind":"__triton')
    # Without command buffers, the dump has no sequence "after passes".
    sequences = sorted(
        dump.glob("*thunk_sequence*.txt"),
        key=lambda path: ("after" in path.name, path.stat().st_size),
    )
    if sequences:
        path = sequences[-1]
        metadata = path.with_name(re.sub(r"thunk_sequence\w*", "thunk_metadata", path.name))
        names = thunk_names(metadata.read_text(encoding="utf-8")) if metadata.exists() else {}
        thunks, trips = parse_thunks(path.read_text(encoding="utf-8")), trip_counts(text)
        trips = {ident: trips[name] for ident, name in names.items() if name in trips}
        report["program"] = count(thunks, trips)._asdict()
        loop = next((thunk for thunk in thunks if thunk.kind == "kWhile"), None)
        if loop:
            groups = group(loop.body, trips, names, op_names(text))
            inner = [
                count(thunk.body, trips)._asdict() for thunk in loop.body if thunk.kind == "kWhile"
            ]
            report["round"] = count(loop.body, trips)._asdict() | {"groups": groups, "inner": inner}
    if spills:
        report["spills"] = register_spills(sorted(dump.glob("*.ptx")), architecture)
    return report


def parse_thunks(text: str) -> tuple[Thunk, ...]:
    """Parse the thunks of a dumped sequence; its indentation gives the nesting."""
    lines = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            lines.append((len(match[1]), match[3], int(match[2]), match[4] or ""))
        elif section := _SECTION.match(line):
            lines.append((len(section[1]), section[2], -1, ""))
    return _nest(lines, 0)[0]


def _nest(lines, at: int) -> tuple[tuple[Thunk, ...], int]:
    """Return the thunks at the indentation of lines[at], and the index of the line after them."""
    thunks: list[Thunk] = []
    indent = lines[at][0] if at < len(lines) else 0
    while at < len(lines) and lines[at][0] >= indent and lines[at][2] >= 0:
        if lines[at][0] > indent:  # thunks inside the last one
            inner, at = _nest(lines, at)
            thunks[-1] = thunks[-1]._replace(body=thunks[-1].body + inner)
            continue
        _, kind, ident, name = lines[at]
        condition, body, at = _sections(kind, indent, lines, at + 1)
        thunks.append(Thunk(kind, ident, name, body, condition))
    return tuple(thunks), at


def _sections(kind: str, indent: int, lines, at: int) -> tuple[tuple, tuple, int]:
    """Read the condition and body of a loop, or the branches of a conditional.

    Returns:
      Condition, body or branches, and the index of the line after them.
    """
    found: dict[str, tuple] = {}
    titles = {
        "kWhile": ("condition", "body"),
        "kConditional": ("branch", "false_branch", "true_branch"),
    }.get(kind, ())
    while (
        at < len(lines)
        and lines[at][2] < 0
        and lines[at][1].startswith(titles)
        and lines[at][1] not in found
    ):
        if kind == "kConditional" and lines[at][0] <= indent:  # of the enclosing conditional
            break
        title = lines[at][1]
        found[title], at = _nest(lines, at + 1)
    if kind == "kConditional":
        return (), tuple(Thunk("branch", -1, title, inner) for title, inner in found.items()), at
    return found.get("condition", ()), found.get("body", ()), at


def count(thunks, trips: dict[int, int], inside: bool = False) -> Count:
    """Count the launches of thunks; for a conditional, those of its largest branch.

    Args:
      thunks: from `parse_thunks`.
      trips: {ident of a loop: number of iterations}.
      inside: whether the thunks are in a command buffer.
    """
    total = Count()
    for thunk in thunks:
        buffer = thunk.kind == "kCommandBuffer"
        if thunk.kind == "kWhile":
            times = trips.get(thunk.ident, 1)
            total = total.plus(count(thunk.body + thunk.condition, trips, inside), times)
            total = total.plus(Count(loops=1, unknown=thunk.ident not in trips))
        elif thunk.kind in _CONTAINERS:
            total = total.plus(count(_runs(thunk, trips), trips, inside or buffer)).plus(
                Count(buffers=buffer)
            )
        else:
            copy = thunk.kind in _COPIES
            total = total.plus(Count(kernels=not copy, copies=copy, outside=not inside))
    return total


def _runs(thunk: Thunk, trips) -> tuple:
    """Return the thunks that a container runs; for a conditional, its branch with most launches."""
    if thunk.kind != "kConditional":
        return thunk.body
    return max(
        (branch.body for branch in thunk.body),
        key=lambda body: sum(count(body, trips)[:2]),
        default=(),
    )


def group(
    thunks, trips: dict[int, int], names: dict[int, str], sources: dict[str, str]
) -> dict[str, int]:
    """Count launches by the part of the program that they come from, most frequent first.

    Layers of one kind are one part: their numbers are replaced by a star.

    Args:
      thunks: from `parse_thunks`.
      trips: {ident of a loop: number of iterations}.
      names: {ident of a thunk: HLO instruction}.
      sources: {HLO instruction: op_name}.
    """
    found: collections.Counter[str] = collections.Counter()

    def visit(thunks, times):
        for thunk in thunks:
            if thunk.kind == "kWhile":
                visit(thunk.body + thunk.condition, times * trips.get(thunk.ident, 1))
            elif thunk.kind in _CONTAINERS:
                visit(_runs(thunk, trips), times)
            else:
                found[_part(sources.get(names.get(thunk.ident, ""), ""))] += times

    visit(thunks, 1)
    return dict(found.most_common())


def _part(op_name: str) -> str:
    """Name a part: `jit(run)/while/body/Transformer/layers_3/mlp/...` → `Transformer/layers_*`."""
    pieces = [
        piece
        for piece in op_name.split("/")
        if piece not in ("while", "body", "cond", "closed_call", "branch")
    ]
    pieces = [
        re.sub(r"\d+", "*", piece)
        for piece in pieces
        if not piece.startswith(("jit(", "pjit", "vmap("))
    ]
    return "/".join(pieces[:2] if len(pieces) > 2 else pieces[:1]) or "other"


def thunk_names(metadata: str) -> dict[int, str]:
    """Return {ident of a thunk: HLO instruction} from a dumped thunk_metadata."""
    found = re.findall(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)', metadata)
    return {int(ident): name for name, ident in found}
