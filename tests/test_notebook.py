"""The quickstart notebook runs from the first cell to the last."""

from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def test_quickstart_runs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    printed = "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
    assert "identical to autoregressive: yes" in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 1
    assert any(
        "accepted, round 1" in output.get("data", {}).get("text/html", "") for output in outputs
    )


def test_no_outputs_are_committed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(
        cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code"
    )


def test_first_cell_leaves_jax_alone():
    """It installs the package without its dependencies, from the repository and never by the name
    that PyPI gave away.
    """
    source = next(
        cell.source
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code"
    )
    assert (
        'find_spec("jaxspec") is None' in source
        and '"--no-deps", f"jax-speculative @ {REPOSITORY}"' in source
    )
    assert "install jaxspec" not in source and '"jax"' not in source
