"""Rooms that `params` passes on its way through `decode`, traced while it runs.

A room is a module of the library or the kernels in which a function is called that is given
`params`: an argument is a `Params` or the variables of a target or drafter (a dict with "params"),
or it is a tuple or an object of the library with such a field. A visit is a line of such a
function, in one room, from which one in another room is entered; how often it runs does not matter.
What JAX, Flax and other libraries call in between is not looked at.

The call is the first of a process, with two layers of `mini` and DFlash, and nothing kept on disk:
it compiles everything, and the tuner has everything to choose. `python -m house.rooms 8` traces
`decode(..., budget=8)` and prints the visits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from types import FrameType
from typing import Any, NamedTuple

from house.modules import LIBRARIES, ROOT

_FOLDERS = tuple(f"{folder}{os.sep}" for folder in LIBRARIES)
_WITH_REST = (0x04, 0x08)  # flags of code that takes *args, **kwargs


class Visit(NamedTuple):
    """A line of one room that enters a function of another."""

    room: str
    function: str
    come_from: str
    line: int


def trace_rooms(budget: int | None = None) -> tuple[list[str], list[Visit]]:
    """Trace a decode in a process of its own: the rooms, and the visits.

    Args:
      budget: of rows in a round; None leaves all to the tuner.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        environment = os.environ | {"JAXSPEC_CACHE": folder, "PYTHONPATH": paths}
        environment.pop("JAXSPEC_PANELS", None)
        done = subprocess.run(
            [sys.executable, "-m", "house.rooms", "--json", *([str(budget)] if budget else [])],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    rooms, visits = json.loads(done.stdout.splitlines()[-1])
    return rooms, [Visit(*one) for one in visits]


class Tracer:
    """A profiler that follows what is given `params`.

    Attributes:
      rooms: modules by their paths. visits: see `Visit`.
    """

    def __init__(self, root: type):
        self.rooms: set[str] = set()
        self.visits: set[Visit] = set()
        self._root = root
        self._stack: list[tuple[FrameType, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and self._stack and self._stack[-1][0] is frame:
            self._stack.pop()
        if event != "call" or not frame.f_code.co_filename.startswith(_FOLDERS):
            return
        if any(self._holds(value) for value in list_arguments(frame)):
            self._enter(frame, os.path.relpath(frame.f_code.co_filename, ROOT))

    def _enter(self, frame: FrameType, room: str) -> None:
        self.rooms.add(room)
        last, before = self._stack[-1] if self._stack else (None, "")
        if room != before:
            line = last.f_lineno if last else 0
            self.visits.add(Visit(room, frame.f_code.co_name, before, line))
        self._stack.append((frame, room))

    def _holds(self, value: Any) -> bool:
        if self._is_params(value):
            return True
        if isinstance(value, tuple):
            return any(map(self._is_params, value))
        ours = (type(value).__module__ or "").startswith(("jaxspec", "pallas_kernels"))
        fields = getattr(value, "__dict__", None) if ours and not isinstance(value, type) else None
        return bool(fields) and any(map(self._is_params, fields.values()))

    def _is_params(self, value: Any) -> bool:
        return isinstance(value, self._root) or isinstance(value, dict) and "params" in value


def list_arguments(frame: FrameType) -> list[Any]:
    """List the values of a frame's arguments when it is called."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & flag) for flag in _WITH_REST)
    values = frame.f_locals
    return [values[name] for name in code.co_varnames[:count] if name in values]


def main() -> None:
    """Trace the decode of this process."""
    from short_models import load_short

    import jaxspec
    from jaxspec.core.params import Params

    sized = [int(one) for one in sys.argv[1:] if one.isdigit()]
    params = load_short()
    tracer = Tracer(Params)
    sys.setprofile(tracer)
    try:
        budget = {"budget": sized[0]} if sized else {}
        jaxspec.decode(params, "Question: 3 + 4 =", max_new_tokens=24, **budget)
    finally:
        sys.setprofile(None)
    if "--json" in sys.argv:
        print(json.dumps([sorted(tracer.rooms), sorted(tracer.visits)]))
        return
    for visit in sorted(tracer.visits, key=lambda one: (one.come_from, one.line)):
        print(f"{visit.come_from}:{visit.line} -> {visit.room} {visit.function}")
    print(f"{len(tracer.rooms)} rooms, {len(tracer.visits)} visits")


if __name__ == "__main__":
    main()
