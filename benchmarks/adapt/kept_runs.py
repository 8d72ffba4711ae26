"""A file of finished streams, so that hours of measurement survive their process.

Its first line says what was measured; every other line is a run of `measure_adapt`. Equal lines of
settings make runs that belong together: arms and seeds may be added later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.io.text.prompt_files import LabelledPrompt

Record = dict[str, Any]


def digest_prompts(prompts: Sequence[LabelledPrompt]) -> str:
    """Return a digest of prompts and their domains."""
    found = hashlib.sha256()
    for prompt in prompts:
        found.update(f"{prompt.domain}\n{prompt.content}\n".encode())
    return found.hexdigest()[:16]


class KeptRuns:
    """Runs of a file, and those that are added to it.

    Args:
      path: of the file, which is begun if there is none; None keeps nothing.
      settings: what runs of the file have in common; JSON values.

    Raises:
      ValueError: the file holds runs of other settings, or no runs.
    """

    def __init__(self, path: Path | None, settings: Record):
        self.path, self.runs = path, []
        settings = json.loads(json.dumps(settings))  # as they are read back
        if path is None:
            return
        if not path.exists() or not path.stat().st_size:
            self._append({"settings": settings}, "w")
            return
        first, *runs = _read_lines(path)
        if "settings" not in first:
            raise ValueError(f"{path} holds no runs of streams: give another file")
        for name in sorted(settings | first["settings"]):
            theirs, ours = first["settings"].get(name), settings.get(name)
            if theirs != ours:
                raise ValueError(
                    f"{path} holds runs with {name} {theirs}, not {ours}: give another file"
                )
        self.runs = runs

    def find(self, arm: str, seed: int) -> Record | None:
        """Return the run of an arm and a seed; None if it was not finished."""
        found = (run for run in self.runs if (run["arm"], run["seed"]) == (arm, seed))
        return next(found, None)

    def add(self, run: Record) -> None:
        """Keep a run. It is on the disk when this returns."""
        self.runs.append(run)
        if self.path is not None:
            self._append(run, "a")

    def _append(self, line: Record, mode: str) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _read_lines(path: Path) -> list[Record]:
    """Read a file of JSON Lines. The last line may have been cut off with its process: drop it.

    Raises:
      ValueError: it is not such a file.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        path.write_text("".join(lines := lines[:-1]), encoding="utf-8")
    try:
        found = [json.loads(line) for line in lines]
    except ValueError:
        found = []
    if not found or not all(isinstance(line, dict) for line in found):
        raise ValueError(f"{path} holds no runs of streams: give another file")
    return found
