"""Count the bytes that a compiled GPU program moves and the products that it computes.

Every kernel reads its operands from memory and writes its results, so the optimised HLO tells the
traffic: what the elements of a fusion's results need of its operands, and no caches. Caches only
make less of it. Peak bandwidth then gives a lower bound of the time, without the launches.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from pallas_kernels.aot import FALLBACK
from pallas_kernels.aot.hlo import find_computations, find_entry

_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations|true_computation|false_computation)=(\{.*?\}|\S+)"
)
_APPLIED = re.compile(r"\bto_apply=%?([\w.\-]+)")
_RARE = re.compile(rf'op_name="[^"]*/{FALLBACK}/cond"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTED = re.compile(r"lhs_contracting_dim(?:s=\{|ension_?s?\":\[)\"?(\d+)")
_NAME = re.compile(r"%([\w.\-]+)")
# The second result of a product of a library: scratch memory.
_WORKSPACE = re.compile(r",\s*s8\[\d+\](\{0\})?(?=\)$)")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "opt-barrier",
    "after-all", "partition-id",
}  # fmt: skip
_LOOKS_UP = {"gather", "dynamic-slice", "slice"}
# Every element of these needs all of an operand, or many elements of it.
_NEEDS_ALL = {"dot", "reduce", "reduce-window", "convolution", "sort", "scatter"}


class Traffic(NamedTuple):
    """Bytes read and written, floating-point operations of matrix products, and kernels.

    Kernels of Pallas count with what they write: what they read is theirs to choose.
    """

    read: int = 0
    written: int = 0
    flops: int = 0
    kernels: int = 0

    def plus(self, other: Traffic, times: int = 1) -> Traffic:
        """Return the sum of this traffic and `times` times another."""
        return Traffic(*(a + times * b for a, b in zip(self, other, strict=True)))


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: list[str]
    line: str


def count_traffic(text: str) -> dict[str, Any]:
    """Count what a turn of the outermost loop of a program moves; without a loop, the program.

    Loops inside count as often as they run, or once if that is not known; conditionals count their
    branch of most traffic.

    Args:
      text: optimised HLO.

    Returns:
      The fields of `Traffic`. With conditionals in a named scope `fallback`, also `common`: the
      same fields if these take their other branch.
    """
    computations = {
        name: [_Instruction(*each[:3], _operands(each[3], each[2]), each[3]) for each in lines]
        for name, lines in find_computations(text).items()
    }
    entry = find_entry(text)
    if entry is None:
        return Traffic()._asdict()
    loops = (each for each in computations[entry] if each.opcode == "while")
    loop = next((match[1] for each in loops if (match := _BODY.search(each.line))), entry)
    total, common = (_count(computations, loop, rare) for rare in (True, False))
    return total._asdict() | ({} if common == total else {"common": common._asdict()})


def _operands(line: str, opcode: str) -> list[str]:
    """Return the names of an instruction's operands."""
    start = line.index(f" {opcode}(") + len(opcode) + 2
    depth, end = 1, start
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return _NAME.findall(line[start:end])


def _count(computations, name: str, rare: bool) -> Traffic:
    """Count what the instructions of a computation move, with or without fallbacks."""
    total, shapes = Traffic(), {each.name: each.shape for each in computations[name]}
    for each in computations[name]:
        if each.opcode == "while":
            trips, body = _TRIPS.search(each.line), _BODY.search(each.line)
            inner = _count(computations, body[1], rare) if body else Traffic()
            total = total.plus(inner, int(trips[1]) if trips else 1)
        elif each.opcode == "conditional":
            names = [one for found in _BRANCHES.findall(each.line) for one in _NAME.findall(found)]
            branches = [_count(computations, one, rare) for one in names]
            choose = max if rare or not _RARE.search(each.line) else min
            total = total.plus(choose(branches, key=lambda one: (one.read + one.written, *one)))
        elif each.opcode == "call" and (applied := _APPLIED.search(each.line)):
            total = total.plus(_count(computations, applied[1], rare))
        elif each.opcode not in _FREE:
            total = total.plus(_count_kernel(computations, each, shapes))
    return total


def _count_kernel(computations, kernel: _Instruction, shapes: dict[str, str]) -> Traffic:
    """Count what one kernel moves."""
    calls = _CALLS.search(kernel.line)
    inside = computations.get(calls[1], []) if calls else []
    if not inside:
        own = kernel.opcode != "custom-call" or "cublas" in kernel.line
        read = sum(_bytes(shapes.get(name, "")) for name in kernel.operands) if own else 0
        if kernel.opcode in _LOOKS_UP:
            read = _bytes(kernel.shape)
        written = _bytes(_WORKSPACE.sub("", kernel.shape) if own else kernel.shape)
        return Traffic(read, written, _flops(kernel, shapes), 1)
    local = {each.name: each.shape for each in inside}
    needed = _needed(inside)
    read = sum(
        math.ceil(needed[each.name] / max(_elements(each.shape), 1) * _bytes(each.shape))
        for each in inside
        if each.opcode == "parameter"
    )
    flops = sum(_flops(each, local) for each in inside)
    return Traffic(read, _written(inside, local), flops, 1)


def _needed(inside: list[_Instruction]) -> dict[str, int]:
    """Return how many elements of each instruction of a fusion its result needs."""
    needed = dict.fromkeys((each.name for each in inside), 0)
    sizes = {each.name: _elements(each.shape) for each in inside}
    for each in reversed(inside):
        if "ROOT" in each.line:
            needed[each.name] = sizes[each.name]
        for operand in dict.fromkeys(each.operands):
            if operand in sizes:
                share = _share(each, operand, needed[each.name], sizes[operand])
                needed[operand] = min(sizes[operand], needed[operand] + share)
    return needed


def _share(user: _Instruction, operand: str, wanted: int, size: int) -> int:
    """Return how many of an operand's `size` elements give `wanted` elements of its user."""
    first = user.operands[0] == operand
    if user.opcode == "dynamic-update-slice" and first:
        return 0  # in place
    whole = user.opcode in _NEEDS_ALL or (user.opcode in _LOOKS_UP and not first)
    return size if whole else wanted


def _written(inside: list[_Instruction], shapes: dict[str, str]) -> int:
    """Return the bytes of a fusion's results; of updates in place, only what changes."""
    byname = {each.name: each for each in inside}
    root = next(each for each in inside if "ROOT" in each.line)
    results = (
        [byname.get(name, root) for name in root.operands] if root.opcode == "tuple" else [root]
    )
    return sum(
        _bytes(shapes[each.operands[1]] if each.opcode == "dynamic-update-slice" else each.shape)
        for each in results
    )


def _flops(each: _Instruction, shapes: dict[str, str]) -> int:
    """Return the floating-point operations of a matrix product; 0 for other instructions."""
    contracted = _CONTRACTED.search(each.line)
    if contracted is None or not each.operands:
        return 0
    dims = _dims(shapes.get(each.operands[0], ""))
    at = int(contracted[1])
    result = max(map(math.prod, _all_dims(_WORKSPACE.sub("", each.shape))), default=0)
    return 2 * result * dims[at] if at < len(dims) else 0


def _all_dims(shape: str) -> list[list[int]]:
    return [[int(dim) for dim in dims.split(",") if dim] for _, dims in _ARRAY.findall(shape)]


def _dims(shape: str) -> list[int]:
    return next(iter(_all_dims(shape)), [])


def _elements(shape: str) -> int:
    return sum(math.prod(dims) for dims in _all_dims(shape))


def _bytes(shape: str) -> int:
    """Return the bytes of an array type, or of all arrays of a tuple."""
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        bits = re.search(r"\d+", dtype)
        width = 1 if dtype == "pred" or not bits else max(int(bits[0]) // 8, 1)
        total += width * math.prod(int(dim) for dim in dims.split(",") if dim)
    return total
