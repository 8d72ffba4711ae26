"""Count registers and spills of dumped kernels with NVIDIA's assembler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_FUNCTION = re.compile(r"Function properties for '?([\w.$]+)'?")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# ptxas refuses some long lists of files.
_TOGETHER = 16
_REGISTERS = re.compile(r"Used (\d+) registers")


def find_ptxas() -> str | None:
    """Find ptxas on the path or in the wheels nvidia-cuda-nvcc-cu12 and nvidia-cuda-nvcc."""
    places = [
        Path(path) / "nvidia" / folder / "bin" / "ptxas"
        for path in sys.path
        for folder in ("cuda_nvcc", "cu13")
    ]
    return shutil.which("ptxas") or next((str(place) for place in places if place.is_file()), None)


def register_spills(files: list[Path], architecture: str) -> dict[str, Any]:
    """Count registers and spills of kernels with ptxas.

    Args:
      files: dumped PTX.
      architecture: for example sm_90a.

    Returns:
      `tool` (path of ptxas, or None), `reason` (why some kernels were not checked, or None),
      `checked` (number of kernels), `most_registers`, and `spilling`: {kernel: bytes stored and
      loaded} of kernels that spill.
    """
    tool = find_ptxas()
    if tool is None:
        return {
            "tool": None,
            "reason": "no ptxas: pip install nvidia-cuda-nvcc-cu12",
            "checked": 0,
            "spilling": {},
        }
    files = [path for path in files if ".entry" in path.read_text(encoding="utf-8")]
    outputs, reason = [], None
    for start in range(0, len(files), _TOGETHER):
        status, output = _assemble(tool, architecture, files[start : start + _TOGETHER])
        outputs.append(output)
        if status == 0:
            continue
        # ptxas crashes on some lists of files that it takes one by one.
        each = [_assemble(tool, architecture, [file]) for file in files[start : start + _TOGETHER]]
        outputs[-1] = "\n".join(output for _, output in each)
        for status, output in each:
            if status:
                reason = " ".join(output.split())[-300:] or f"ptxas: exit status {status}"
    return {"tool": tool, "reason": reason} | parse_ptxas("\n".join(outputs))


def _assemble(tool: str, architecture: str, files: list[Path]) -> tuple[int, str]:
    """Run ptxas on files; return its exit status and what it printed."""
    command = [tool, "-v", "--gpu-name", architecture, *map(str, files), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr + done.stdout


def parse_ptxas(text: str) -> dict[str, Any]:
    """Parse the output of `ptxas -v` into `checked`, `most_registers` and `spilling`.

    See `register_spills`.
    """
    spilling, kernel = {}, None
    for line in text.splitlines():
        if match := _FUNCTION.search(line):
            kernel = match[1]
        elif (match := _SPILL.search(line)) and any(map(int, match.groups())):
            spilling[kernel] = sum(map(int, match.groups()))
    registers = [int(number) for number in _REGISTERS.findall(text)]
    return {
        "checked": len(registers),
        "most_registers": max(registers, default=0),
        "spilling": spilling,
    }
