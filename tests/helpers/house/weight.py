"""MiB of what git tracks and of a wheel, and the words of pages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from house.modules import ROOT, run_git

# Pages that a user reads, reports of measurements apart.
PAGES = (
    "README.md",
    "docs/*.md",
    "jaxspec/zoo/*/README.md",
    "jaxspec/drafters/README.md",
    "jaxspec/policies/README.md",
    "training/**/*.md",
)
# Not counted: `jaxspec reproduce --page` writes it from results, so nobody can shorten it.
GENERATED = "docs/claims.md"


def measure_tracked() -> float:
    """MiB of all files that git tracks."""
    paths = (ROOT / line for line in run_git("ls-files"))
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def measure_wheel() -> float | str:
    """MiB of a wheel built into a temporary folder, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        return wheel if isinstance(wheel, str) else wheel.stat().st_size / 2**20


def build_wheel(folder: Path) -> Path | str:
    """Build a wheel into a folder: its path, or the reason why there is none."""
    # A build leaves its own files in the source tree, so it works on a copy of what git tracks.
    source, built = folder / "source", folder / "built"
    for line in run_git("ls-files"):
        target = source / line
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / line).is_file():
            target.write_bytes((ROOT / line).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(source)]
    command += ["--wheel-dir", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(built.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line.strip() for line in done.stderr.splitlines() if "rror" in line]
        return f"not built ({errors[-1] if errors else 'pip gave no reason'})"
    return wheels[0]


def count_readme_lines() -> int:
    """Count the lines of README.md."""
    return len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())


def count_page_words() -> dict[str, int]:
    """Count what stands between blanks on each page for users, tables and code too."""
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)} - {ROOT / GENERATED})
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {name: len(text.split()) for name, text in texts.items()}
