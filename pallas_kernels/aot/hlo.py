"""Read optimised HLO: the source of instructions, the trip counts of loops, and copies."""

from __future__ import annotations

import re
from typing import Any

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(?[a-z]\w*\[.*?)\s([\w\-]+)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_RUNS = re.compile(
    r"\b(?:body|condition|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
_NO_RESULT = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "opt-barrier",
    "iota",
}
_MOVES = _NO_RESULT | {
    "copy",
    "transpose",
    "concatenate",
    "slice",
    "pad",
    "reshape",
    "reverse",
    "convert",
    "broadcast",
}


def trip_counts(text: str) -> dict[str, int]:
    """Return {name of a loop's instruction: number of iterations}, for loops that XLA knows."""
    found = {}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match and match[3] == "while" and (trips := _TRIPS.search(line)):
            found[match[1]] = int(trips[1])
    return found


def op_names(text: str) -> dict[str, str]:
    """Return {instruction: its `op_name`}.

    For a fusion without one, take the first name inside that mentions a layer, else the first name.
    """
    computations = find_computations(text)
    found = {}
    for instructions in computations.values():
        for name, _, _, line in instructions:
            own = _OP_NAME.search(line)
            calls = _CALLS.search(line)
            inside = (
                [
                    m[1]
                    for *_, each in computations.get(calls[1], ())
                    if (m := _OP_NAME.search(each))
                ]
                if calls
                else []
            )
            names = ([own[1]] if own else []) + inside
            found[name] = next(
                (each for each in names if "layers_" in each), names[0] if names else ""
            )
    return found


def large_results(text: str, least: int) -> list[dict[str, Any]]:
    """List the results that a program writes, of at least `least` bytes, largest first.

    Results that are written in place (dynamic update slices) are left out.

    Args:
      text: optimised HLO.
      least: bytes.

    Returns:
      Dicts of `name`, `shape`, `bytes`, `moves` (whether it only moves or converts data: a copy)
      and `source` (its op_name).
    """
    computations, sources = find_computations(text), op_names(text)
    found = []
    for name in _executed(text, computations):
        for instruction, shape, opcode, line in computations[name]:
            size = _bytes(shape)
            if size < least or opcode in _NO_RESULT:
                continue
            calls = _CALLS.search(line)
            inside = computations.get(calls[1], []) if calls else []
            opcodes = {each for _, _, each, _ in inside} or {opcode}
            if (
                any(each.startswith("dynamic-update-slice") for each in opcodes)
                or "scatter" in opcodes
            ):
                continue
            entry = {"name": instruction, "shape": shape, "bytes": size, "moves": opcodes <= _MOVES}
            found.append(entry | {"source": sources.get(instruction, "")})
    return sorted(found, key=lambda each: -each["bytes"])


def find_computations(text: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """Return the instructions (name, shape, opcode, line) of every computation."""
    found: dict[str, list] = {}
    current: list = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = found[header[1]] = []
        elif match := _INSTRUCTION.match(line):
            current.append((match[1], match[2], match[3], line))
    return found


def find_entry(text: str) -> str | None:
    """Return the name of the computation that a program begins with."""
    found = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    return found[1] if found else None


def _executed(text: str, computations) -> list[str]:
    """List computations that run by themselves: the entry, and those of loops, branches, calls."""
    entry = find_entry(text)
    reached, left = [], [entry] if entry else []
    while left:
        name = left.pop()
        if name in reached or name not in computations:
            continue
        reached.append(name)
        for _, _, opcode, line in computations[name]:
            if opcode in ("while", "conditional", "call"):
                left += [
                    each.strip(" %")
                    for called in _RUNS.findall(line)
                    for each in called.strip("{}").split(",")
                ]
    return reached


def _bytes(shape: str) -> int:
    """Return the bytes of an array type like bf16[4,16]{1,0}; for a tuple, of its largest array."""
    sizes = [0]
    for dtype, dims in _ARRAY.findall(shape):
        bits = re.search(r"\d+", dtype)
        width = 1 if dtype == "pred" or not bits else max(int(bits[0]) // 8, 1)
        product = width
        for dim in filter(None, dims.split(",")):
            product *= int(dim)
        sizes.append(product)
    return max(sizes)
