"""The quickstart notebook runs from the first cell to the last."""

from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parent.parent
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
    """It installs the package without its dependencies, and never under its import name, which
    belongs to another project on PyPI.
    """
    source = next(
        cell.source
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code"
    )
    assert 'find_spec("jaxspec") is None' in source
    assert 'pip_install("--no-deps", find_source())' in source
    assert "install jaxspec" not in source and '"jax"' not in source


def test_first_cell_finds_the_clone_or_the_distribution(tmp_path, monkeypatch):
    source = next(
        cell.source
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code"
    )
    names = {}
    exec(source.partition("if importlib")[0], names)
    monkeypatch.chdir(NOTEBOOK.parent)
    assert names["find_source"]() == str(ROOT)
    monkeypatch.chdir(tmp_path)
    assert names["find_source"]() == "jax-speculative"
