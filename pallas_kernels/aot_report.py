"""What XLA's dump says of a compiled GPU program: kernels, command buffers, large results, register spills."""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

# Thunks that hold others; all the rest are kernels, library calls or copies.
_CONTAINERS = {"kCommandBuffer", "kWhile", "kConditional", "kSequential", "kDynamicSliceFusion"}
_COPIES = {"kCopy", "kMemset", "kMemzero", "kMemset32BitValue"}
_LINE = re.compile(r"^(\s*)(\d+): (k\w+)\s*\[[^\]]*\]\s*(?:(\S+) grid:.*)?")
_SECTION = re.compile(r"^(\s*)(condition|body|branch[ _]?\w*|false|true)\s*:")

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(?[a-z]\w*\[.*?)\s([\w\-]+)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_RUNS = re.compile(
    r"\b(?:body|condition|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
_NO_RESULT = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "opt-barrier", "iota"}
_MOVES = _NO_RESULT | {"copy", "transpose", "concatenate", "slice", "pad", "reshape", "reverse", "convert", "broadcast"}

_FUNCTION = re.compile(r"Function properties for '?([\w.$]+)'?")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Thunk(NamedTuple):
    """A step of XLA's GPU runtime: a kernel, a copy, or a container (`body`) of others.

    Attributes:
      kind: XLA's name, such as kCustomKernel. ident: its number in the dump. name: the kernel's, "" of others.
      body: thunks inside; of a loop those of its body, of a conditional those of all branches.
      condition: of a loop.
    """

    kind: str
    ident: int
    name: str = ""
    body: tuple = ()
    condition: tuple = ()


class Count(NamedTuple):
    """Launches of a sequence of thunks, loops counted as often as they run (once where that is unknown).

    Attributes:
      kernels, copies: inside and outside of command buffers. outside: how many of them are not in a command buffer.
      buffers: launches of command buffers. loops: inner loops, which the host drives. unknown: how many of these run
        unknown times.
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
      `program` and `round` (the body of the outermost loop; None without one): `Count`s as dicts, `round` with `groups`,
      kernels and copies by the part of the program that they come from; `large`: see `large_results`; `spills`: see
      `register_spills`.
    """
    text = (dump / "program.txt").read_text(encoding="utf-8")
    report: dict[str, Any] = {"program": None, "round": None, "large": large_results(text, large)}
    sequences = sorted(dump.glob("*thunk_sequence_after_thunk_passes.txt"), key=lambda path: path.stat().st_size)
    if sequences:
        path = sequences[-1]
        metadata = path.with_name(path.name.replace("thunk_sequence_after_thunk_passes", "thunk_metadata"))
        names = thunk_names(metadata.read_text(encoding="utf-8")) if metadata.exists() else {}
        thunks, trips = parse_thunks(path.read_text(encoding="utf-8")), trip_counts(text)
        trips = {ident: trips[name] for ident, name in names.items() if name in trips}
        report["program"] = count(thunks, trips)._asdict()
        loop = next((thunk for thunk in thunks if thunk.kind == "kWhile"), None)
        if loop:
            groups = group(loop.body, trips, names, op_names(text))
            report["round"] = count(loop.body, trips)._asdict() | {"groups": groups}
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
        thunk, at = Thunk(kind, ident, name), at + 1
        # Section titles are less indented than what they hold; a loop's condition and body are its own.
        while thunk.kind in ("kWhile", "kConditional") and at < len(lines) and lines[at][2] < 0:
            where = "condition" if lines[at][1] == "condition" else "body"
            inner, at = _nest(lines, at + 1)
            thunk = thunk._replace(**{where: getattr(thunk, where) + inner})
        thunks.append(thunk)
    return tuple(thunks), at


def count(thunks, trips: dict[int, int], inside: bool = False) -> Count:
    """What running `thunks` launches; `trips`: how often a loop runs, by the loop's number."""
    total = Count()
    for thunk in thunks:
        buffer = thunk.kind == "kCommandBuffer"
        if thunk.kind == "kWhile":
            times = trips.get(thunk.ident, 1)
            total = total.plus(count(thunk.body + thunk.condition, trips, inside), times)
            total = total.plus(Count(loops=1, unknown=thunk.ident not in trips))
        elif thunk.kind in _CONTAINERS:
            total = total.plus(count(thunk.body, trips, inside or buffer)).plus(Count(buffers=buffer))
        else:
            copy = thunk.kind in _COPIES
            total = total.plus(Count(kernels=not copy, copies=copy, outside=not inside))
    return total


def group(thunks, trips: dict[int, int], names: dict[int, str], sources: dict[str, str]) -> dict[str, int]:
    """Launches by the part of the program that they come from, most first; names of layers lose their number."""
    found: collections.Counter[str] = collections.Counter()

    def visit(thunks, times):
        for thunk in thunks:
            if thunk.kind == "kWhile":
                visit(thunk.body + thunk.condition, times * trips.get(thunk.ident, 1))
            elif thunk.kind in _CONTAINERS:
                visit(thunk.body, times)
            else:
                found[_part(sources.get(names.get(thunk.ident, ""), ""))] += times

    visit(thunks, 1)
    return dict(found.most_common())


def _part(op_name: str) -> str:
    """`Transformer/layers_3/mlp/...` of `jit(run)/while/body/Transformer/layers_3/mlp/...` as `Transformer/layers_*`."""
    pieces = [piece for piece in op_name.split("/") if piece not in ("while", "body", "cond", "closed_call", "branch")]
    pieces = [re.sub(r"\d+", "*", piece) for piece in pieces if not piece.startswith(("jit(", "pjit", "vmap("))]
    return "/".join(pieces[:2] if len(pieces) > 2 else pieces[:1]) or "other"


def thunk_names(metadata: str) -> dict[int, str]:
    """HLO instructions by number of their thunk, of a dumped thunk_metadata."""
    found = re.findall(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)', metadata)
    return {int(ident): name for name, ident in found}


def trip_counts(text: str) -> dict[str, int]:
    """How often loops run, by the name of the instruction, where XLA knows."""
    found = {}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match and match[3] == "while" and (trips := _TRIPS.search(line)):
            found[match[1]] = int(trips[1])
    return found


def op_names(text: str) -> dict[str, str]:
    """The `op_name` of every instruction; of a fusion without one, the first inside that names a layer, else the first."""
    computations = _computations(text)
    found = {}
    for instructions in computations.values():
        for name, _, _, line in instructions:
            own = _OP_NAME.search(line)
            calls = _CALLS.search(line)
            inside = [m[1] for *_, each in computations.get(calls[1], ()) if (m := _OP_NAME.search(each))] if calls else []
            names = ([own[1]] if own else []) + inside
            found[name] = next((each for each in names if "layers_" in each), names[0] if names else "")
    return found


def large_results(text: str, least: int) -> list[dict[str, Any]]:
    """What a program writes anew in pieces of `least` bytes and more, largest first.

    Results that are written in place (dynamic update slices) are left out.

    Args:
      text: optimised HLO.

    Returns:
      Dicts of `name`, `shape`, `bytes`, `moves` (whether it only moves or converts data: a copy) and `source` (its op_name).
    """
    computations, sources = _computations(text), op_names(text)
    found = []
    for name in _executed(text, computations):
        for instruction, shape, opcode, line in computations[name]:
            size = _bytes(shape)
            if size < least or opcode in _NO_RESULT:
                continue
            calls = _CALLS.search(line)
            inside = computations.get(calls[1], []) if calls else []
            opcodes = {each for _, _, each, _ in inside} or {opcode}
            if any(each.startswith("dynamic-update-slice") for each in opcodes) or "scatter" in opcodes:
                continue
            entry = {"name": instruction, "shape": shape, "bytes": size, "moves": opcodes <= _MOVES}
            found.append(entry | {"source": sources.get(instruction, "")})
    return sorted(found, key=lambda each: -each["bytes"])


def _computations(text: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """Instructions (name, shape, opcode, line) of every computation."""
    found: dict[str, list] = {}
    current: list = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = found[header[1]] = []
        elif match := _INSTRUCTION.match(line):
            current.append((match[1], match[2], match[3], line))
    return found


def _executed(text: str, computations) -> list[str]:
    """Computations that run as they stand, not as parts of fusions: the entry, and those of loops, branches and calls."""
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    reached, left = [], [entry[1]] if entry else []
    while left:
        name = left.pop()
        if name in reached or name not in computations:
            continue
        reached.append(name)
        for _, _, opcode, line in computations[name]:
            if opcode in ("while", "conditional", "call"):
                left += [each.strip(" %") for called in _RUNS.findall(line) for each in called.strip("{}").split(",")]
    return reached


def _bytes(shape: str) -> int:
    """Bytes of an array type such as bf16[4,16]{1,0}; of a tuple those of its largest."""
    sizes = [0]
    for dtype, dims in _ARRAY.findall(shape):
        bits = re.search(r"\d+", dtype)
        width = 1 if dtype == "pred" or not bits else max(int(bits[0]) // 8, 1)
        product = width
        for dim in filter(None, dims.split(",")):
            product *= int(dim)
        sizes.append(product)
    return max(sizes)


def find_ptxas() -> str | None:
    """NVIDIA's assembler: on the path, or of the wheels nvidia-cuda-nvcc-cu12 and nvidia-cuda-nvcc."""
    places = [Path(path) / "nvidia" / folder / "bin" / "ptxas" for path in sys.path for folder in ("cuda_nvcc", "cu13")]
    return shutil.which("ptxas") or next((str(place) for place in places if place.is_file()), None)


def register_spills(files: list[Path], architecture: str) -> dict[str, Any]:
    """Registers and spills of kernels, by ptxas.

    Args:
      files: PTX, as dumped. architecture: such as sm_90a.

    Returns:
      `tool` (ptxas' path, or None where there is none), `reason` (why nothing or not all was checked, or None), `checked`
      (kernels), `most_registers`, and `spilling`: bytes stored and loaded by kernel, where not 0.
    """
    tool = find_ptxas()
    if tool is None:
        return {"tool": None, "reason": "no ptxas: pip install nvidia-cuda-nvcc-cu12", "checked": 0, "spilling": {}}
    files = [path for path in files if ".entry" in path.read_text(encoding="utf-8")]
    outputs, reason = [], None
    for start in range(0, len(files), 16):  # it refuses some long lists
        command = [tool, "-v", "--gpu-name", architecture, *map(str, files[start : start + 16]), "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        outputs.append(done.stderr + done.stdout)
        if done.returncode:
            reason = " ".join(outputs[-1].split())[-300:] or f"ptxas: exit status {done.returncode}"
    return {"tool": tool, "reason": reason} | parse_ptxas("\n".join(outputs))


def parse_ptxas(text: str) -> dict[str, Any]:
    """`checked`, `most_registers` and `spilling` of `register_spills`, from what `ptxas -v` prints."""
    spilling, kernel = {}, None
    for line in text.splitlines():
        if match := _FUNCTION.search(line):
            kernel = match[1]
        elif (match := _SPILL.search(line)) and any(map(int, match.groups())):
            spilling[kernel] = sum(map(int, match.groups()))
    registers = [int(number) for number in _REGISTERS.findall(text)]
    return {"checked": len(registers), "most_registers": max(registers, default=0), "spilling": spilling}
