"""Every Python snippet and command of the README and docs/ runs as it is written.

A fenced block is skipped if a comment `<!-- not run: reason -->` stands right before it.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slow_cases import slow_except

from jaxspec.cli.main import make_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^>]+-->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")


def blocks(page: Path, language: str) -> list[str]:
    """The page's blocks of a language that are to be run."""
    found = BLOCK.findall(page.read_text())
    return [text for skipped, kind, text in found if kind == language and not skipped]


def commands() -> list[tuple[str, str]]:
    """(page, command line) of all shell blocks, continued lines joined."""
    return [
        (page.name, line)
        for page in PAGES
        for text in blocks(page, "bash")
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip()
    ]


def with_python(page: Path) -> bool:
    return bool(blocks(page, "python"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, where the paths of a clone are found."""
    for name in ("jaxspec", "pallas_kernels", "benchmarks", "tests", "training", "notebooks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The page that most readers start with; the others take minutes together.
QUICK = {"README.md"}


def pages_with_python() -> list:
    """Pages that have blocks of Python, most of them as slow tests."""
    found = [page for page in PAGES if with_python(page)]
    return slow_except([page for page in found if page.name in QUICK], found)


@pytest.mark.parametrize("page", pages_with_python(), ids=lambda page: page.name)
def test_snippets_run(page, place):
    """The blocks of a page run one after the other, as a reader would paste them."""
    names = {"__name__": "__main__"}
    for number, text in enumerate(blocks(page, "python"), 1):
        exec(compile(text, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: value[:60])
def test_commands_run(page, line, place):
    words = shlex.split(line, comments=True)
    if words[0] == "jaxspec":
        words[:1] = [sys.executable, "-m", "jaxspec"]
    elif words[0] == "python":
        words[0] = sys.executable
    assert shutil.which(words[0]), f"{page}: what is {words[0]}?"
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{page}: {line}\n{done.stderr[-2000:]}"


def test_every_command_is_in_the_table():
    names = set(make_parser()._subparsers._group_actions[0].choices)
    rows = (ROOT / "docs/command-line.md").read_text().split("\n\n")[2]
    table = re.findall(r"`([a-z ]+)`", "".join(row.split("|")[1] for row in rows.splitlines()))
    assert names == set(table)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {"#" + heading.replace(" ", "-") for heading in plain}


MARKDOWN = [
    path
    for folder in ("", "docs", "jaxspec", "training", "benchmarks")
    for path in sorted((ROOT / folder).glob("**/*.md" if folder else "*.md"))
]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), (
                f"{page.name} links to {target}{anchor}: no such heading"
            )
