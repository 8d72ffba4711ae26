"""Run the notebooks from the first cell to the last, and keep their outputs: `make notebooks`.

python tests/helpers/run_notebooks.py [NAME ...]
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = "parameters"


def run_notebook(
    path: Path, parameters: Mapping[str, Any] | None = None, *, timeout: int = 600
) -> NotebookNode:
    """Run a notebook in the project's folder and return it with its outputs.

    Args:
      path: the notebook.
      parameters: values by name, set after the cell that is tagged `parameters`.
      timeout: seconds that a cell may take.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    if parameters:
        lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        place = next(i for i, cell in enumerate(notebook.cells) if is_parameters(cell))
        notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(lines, id="given"))
    client = nbclient.NotebookClient(
        notebook, timeout=timeout, record_timing=False, resources={"metadata": {"path": str(ROOT)}}
    )
    return client.execute()


def is_parameters(cell: NotebookNode) -> bool:
    """Whether a cell holds the notebook's settings."""
    return PARAMETERS in cell.metadata.get("tags", ())


def list_code(notebook: NotebookNode) -> list[NotebookNode]:
    """List the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def read_printed(notebook: NotebookNode) -> str:
    """Return all text that the cells printed."""
    outputs = [output for cell in list_code(notebook) for output in cell.outputs]
    return "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def fingerprint_code(notebook: NotebookNode) -> str:
    """Compute a checksum of the code, to tell whether outputs are those of the code beside them."""
    code = "\n\n".join(cell.source for cell in list_code(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def tidy(notebook: NotebookNode) -> None:
    """Drop what changes at each run and says nothing: progress bars, versions, split streams."""
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["executed_code"] = fingerprint_code(notebook)
    for cell in list_code(notebook):
        cell.outputs = _join_streams(
            [output for output in cell.outputs if output.get("name") != "stderr"]
        )


def _join_streams(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    joined: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output.text = re.sub(r"[ \t]+$", "", output.text, flags=re.MULTILINE)
    return joined


def main() -> None:
    """Run the named notebooks, or all of them, and write their outputs."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    known = {path.stem: path for path in NOTEBOOKS}
    wrong = [name for name in sys.argv[1:] if name not in known]
    if wrong:
        raise SystemExit(f"no notebook is called {wrong[0]!r}: choose from {', '.join(known)}")
    for name in sys.argv[1:] or known:
        print(f"running {name}", flush=True)
        notebook = run_notebook(known[name], timeout=3600)
        tidy(notebook)
        nbformat.write(notebook, known[name])


if __name__ == "__main__":
    main()
