"""Count the kernels that a round launches in the text of a compiled program."""

from __future__ import annotations

import re

# Instructions that move no data. The bodies of `while`, `conditional` and `call` are counted in
# their place.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\("
)
_CALLED = re.compile(
    r"(?:to_apply|body|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def count_kernels(text: str) -> int | None:
    """Count the kernels in the body of a program's outermost loop; None without a loop.

    This is an estimate from the optimised HLO. Every instruction except bookkeeping counts as one
    kernel (on a CPU, one thunk), a conditional as its largest branch, and a loop inside the round
    as its body times its trip count if that is known.

    Args:
      text: `compiled.as_text()`.
    """
    computations, entry = _computations(text)
    loops = [called for opcode, called, _ in computations.get(entry, ()) if opcode == "while"]
    return max((_count(computations, body[0]) for body in loops), default=None)


def _count(computations: dict, name: str) -> int:
    total = 0
    for opcode, called, trips in computations.get(name, ()):
        if opcode in ("while", "call", "conditional"):
            total += trips * max((_count(computations, each) for each in called), default=0)
        else:
            total += opcode not in _FREE
    return total


def _computations(text: str) -> tuple[dict[str, list[tuple[str, list[str], int]]], str | None]:
    """Parse computations: {name: [(opcode, computations that it runs, trips)]}, and the entry's
    name.
    """
    found, entry, current = {}, None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = header[2]
            found[current] = []
            entry = current if header[1] else entry
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction and current is not None:
            called = [
                name.strip(" %")
                for group in _CALLED.findall(line)
                for name in group.strip("{}").split(",")
            ]
            trips = _TRIPS.search(line)
            found[current].append((instruction[1], called, int(trips[1]) if trips else 1))
    return found, entry
