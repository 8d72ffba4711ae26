"""What XLA's dump says of a compiled GPU program: kernels, command buffers, large results, register
spills.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any, NamedTuple

from pallas_kernels.aot_hlo import large_results, op_names, trip_counts
from pallas_kernels.aot_ptxas import register_spills

# Thunks that hold others; all the rest are kernels, library calls or copies.
_CONTAINERS = {"kCommandBuffer", "kWhile", "kConditional", "kSequential", "kDynamicSliceFusion"}
_COPIES = {"kCopy", "kMemset", "kMemzero", "kMemset32BitValue"}
_LINE = re.compile(r"^(\s*)(\d+): (k\w+)\s*\[[^\]]*\]\s*(?:(\S+) grid:.*)?")
_SECTION = re.compile(r"^(\s*)(condition|body|branch_\d+)\s*:")


class Thunk(NamedTuple):
    """A step of XLA's GPU runtime: a kernel, a copy, or a container (`body`) of others.

    Attributes:
      kind: XLA's name, such as kCustomKernel. ident: its number in the dump. name: the kernel's, ""
        of others.
      body: thunks inside; of a loop those of its body, of a conditional its branches.
      condition: of a loop.
    """

    kind: str
    ident: int
    name: str = ""
    body: tuple = ()
    condition: tuple = ()


class Count(NamedTuple):
    """Launches of a sequence of thunks, loops counted as often as they run (once where that is
    unknown).

    Attributes:
      kernels, copies: inside and outside of command buffers. outside: how many of them are not in a
        command buffer.
      buffers: launches of command buffers. loops: inner loops, which the host drives. unknown: how
        many of these run unknown times.
    """

    kernels: int = 0
    copies: int = 0
    outside: int = 0
    buffers: int = 0
    loops: int = 0
    unknown: int = 0

    def plus(self, other: Count, times: int = 1) -> Count:
        return Count(*(a + times * b for a, b in zip(self, other, strict=True)))


def describe(dump: Path, architecture: str, large: int, spills: bool) -> dict[str, Any]:
    """The report of the program whose dump lies in `dump`, with its optimised HLO in program.txt.

    Returns:
      `program` and `round` (the body of the outermost loop; None without one): `Count`s as dicts,
      `round` with `groups`, kernels and copies by the part of the program that they come from, and
      `inner`, the `Count` of the body of each loop in it; `large`: see `aot_hlo.large_results`;
      `spills`: see `aot_ptxas.register_spills`.
    """
    text = (dump / "program.txt").read_text(encoding="utf-8")
    report: dict[str, Any] = {"program": None, "round": None, "large": large_results(text, large)}
    # Where nothing was put into command buffers there is no sequence "after passes".
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
    """The thunks of a dumped sequence, nested as its indentation says."""
    lines = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            lines.append((len(match[1]), match[3], int(match[2]), match[4] or ""))
        elif section := _SECTION.match(line):
            lines.append((len(section[1]), section[2], -1, ""))
    return _nest(lines, 0)[0]


def _nest(lines, at: int) -> tuple[tuple[Thunk, ...], int]:
    """Thunks of the indentation of lines[at], and the line after them."""
    thunks: list[Thunk] = []
    indent = lines[at][0] if at < len(lines) else 0
    while at < len(lines) and lines[at][0] >= indent and lines[at][2] >= 0:
        if lines[at][0] > indent:  # what the last thunk holds
            inner, at = _nest(lines, at)
            thunks[-1] = thunks[-1]._replace(body=thunks[-1].body + inner)
            continue
        _, kind, ident, name = lines[at]
        condition, body, at = _sections(kind, indent, lines, at + 1)
        thunks.append(Thunk(kind, ident, name, body, condition))
    return tuple(thunks), at


def _sections(kind: str, indent: int, lines, at: int) -> tuple[tuple, tuple, int]:
    """Condition and body of a loop, or the branches of a conditional, from the titled lines that
    follow it.
    """
    found: dict[str, tuple] = {}
    titles = {"kWhile": ("condition", "body"), "kConditional": ("branch",)}.get(kind, ())
    while (
        at < len(lines)
        and lines[at][2] < 0
        and lines[at][1].startswith(titles)
        and lines[at][1] not in found
    ):
        if (
            kind == "kConditional" and lines[at][0] <= indent
        ):  # of the conditional that holds this one
            break
        title = lines[at][1]
        found[title], at = _nest(lines, at + 1)
    if kind == "kConditional":
        return (), tuple(Thunk("branch", -1, title, inner) for title, inner in found.items()), at
    return found.get("condition", ()), found.get("body", ()), at


def count(thunks, trips: dict[int, int], inside: bool = False) -> Count:
    """What running `thunks` launches, of a conditional its largest branch; `trips`: how often a
    loop runs, by its number.
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
    """The thunks that a container runs: of a conditional, those of the branch with the most
    launches.
    """
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
    """Launches by the part of the program that they come from, most first; names of layers lose
    their number.
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
    """`Transformer/layers_3/mlp/...` of `jit(run)/while/body/Transformer/layers_3/mlp/...` as
    `Transformer/layers_*`.
    """
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
    """HLO instructions by number of their thunk, of a dumped thunk_metadata."""
    found = re.findall(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)', metadata)
    return {int(ident): name for name, ident in found}
