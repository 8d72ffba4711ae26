"""The notebooks run from the first cell to the last, and keep outputs that are worth reading."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import textwrap

import nbformat
import own_drafter
import pytest
from run_notebooks import (
    NOTEBOOKS,
    ROOT,
    fingerprint_code,
    is_parameters,
    list_code,
    read_printed,
    run_notebook,
    tidy,
)

READ = {path.stem: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"
MOST_BYTES = 400_000
# Folders of a machine.
PATHS = re.compile(r"(?<![\w:/.])/(home|root|tmp|work|usr|var|opt|mnt|content|Users|private)/")
# Settings of a run that only shows that every cell works, and pictures that it makes.
SMALL = {
    "compare": (
        {
            "MAX_NEW_TOKENS": 12,
            "REPEATS": 1,
            "DRAFTERS": ("medusa", "prompt_lookup"),
            "BUILDERS": ("chain",),
            "BUDGETS": (),
            "POLICIES": ("default",),
        },
        4,
    ),
    "quickstart": ({"MODEL": "mini", "MAX_NEW_TOKENS": 48}, 2),
    "train_a_drafter": (
        {
            "DRAFTER": "medusa",
            "PROMPTS": 8,
            "ANSWER_TOKENS": 24,
            "STEPS": 6,
            "EVAL_EVERY": 3,
            "ROWS": 2,
            "ROW_TOKENS": 64,
            "ANCHORS": 4,
            "HELD_OUT": 1,
        },
        2,
    ),
    "your_own": ({"MAX_NEW_TOKENS": 24, "TEXTS": 4}, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_it_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    parameters, pictures = SMALL[name]
    notebook = run_notebook(QUICKSTART.with_stem(name), parameters)
    printed = read_printed(notebook)
    assert not re.search(r"identical to autoregressive: no|NO \(\d", printed)
    assert re.search(r"identical to autoregressive: yes|identical to ar", printed)
    outputs = [output for cell in list_code(notebook) for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    if name == "quickstart":
        shown = [output.get("data", {}) for output in outputs]
        assert sum("image/svg+xml" in data for data in shown) == 1
        assert any("accepted, round 1" in data.get("text/html", "") for data in shown)


def shows_something(source: str) -> bool:
    """Whether a cell prints, displays or plots outside of functions."""
    body = [node for node in ast.parse(source).body if not isinstance(node, ast.FunctionDef)]
    calls = [node.func for one in body for node in ast.walk(one) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
    return any(re.fullmatch(r"print|print_table|display|subplots|plot_\w+", name) for name in names)


@pytest.mark.parametrize("name", READ)
def test_outputs_are_kept(name):
    """Every cell that shows something has its output, made in one run by the code as it stands."""
    cells = list_code(READ[name])
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    silent = [cell.id for cell in cells if shows_something(cell.source) and not cell.outputs]
    assert not silent, f"run `make notebooks`: no output of {silent}"
    assert READ[name].metadata["executed_code"] == fingerprint_code(READ[name]), (
        "the code changed after its last run: run `make notebooks`"
    )


@pytest.mark.parametrize("name", READ)
def test_outputs_are_clean(name):
    """No errors, no progress bars, no paths of a machine, and files that load quickly."""
    assert QUICKSTART.with_stem(name).stat().st_size < MOST_BYTES
    for cell in list_code(READ[name]):
        assert set(cell.metadata) <= {"tags"}
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr"
            data = {
                kind: text for kind, text in output.get("data", {}).items() if "png" not in kind
            }
            shown = json.dumps([output.get("text", ""), data])
            assert not PATHS.search(shown), f"cell {cell.id}: {PATHS.search(shown)[0]}"


def test_paths_are_found():
    assert PATHS.search("saved to /tmp/abc/x") and PATHS.search('"/home/me/model"')
    assert not PATHS.search("http://www.w3.org/tmp/ and a/tmp/ and 3 tokens/s")


def test_tidying_drops_what_changes():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")])
    streams = [("stdout", "a\n"), ("stderr", "50 %\r"), ("stdout", "b  \n")]
    notebook.cells[0].outputs = [
        nbformat.v4.new_output("stream", name=name, text=text) for name, text in streams
    ]
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.9"}
    tidy(notebook)
    (output,) = notebook.cells[0].outputs
    assert output.text == "a\nb\n"
    assert notebook.metadata["language_info"] == {"name": "python"}


def test_notebooks_begin_alike():
    """The first cell installs; the second code cell holds the settings, with the model's name."""
    assert len({list_code(notebook)[0].source for notebook in READ.values()}) == 1
    for notebook in READ.values():
        settings = list_code(notebook)[1]
        assert is_parameters(settings) and settings.source.startswith("MODEL = ")


def test_your_own_shows_the_documented_parts():
    """The drafter is that of docs/architecture.md, the policy that of the policies' page."""
    cells = {cell.id: cell.source for cell in list_code(READ["your_own"])}
    page = (ROOT / "jaxspec/policies/README.md").read_text()
    (policy,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with open(own_drafter.__file__) as file:
        assert list_definitions(cells["drafter"]) == list_definitions(file.read())
    assert list_definitions(cells["policy"]) == list_definitions(policy)


def list_definitions(code: str) -> list[str]:
    """The statements of a module without docstring and imports."""
    body = ast.parse(textwrap.dedent(code)).body
    return [
        ast.dump(node)
        for number, node in enumerate(body)
        if not isinstance(node, ast.Import | ast.ImportFrom)
        and not (number == 0 and isinstance(node, ast.Expr))
    ]


def run_first_cell(monkeypatch, missing: set[str]) -> list[list[str]]:
    """Run the first cell where some modules are missing; return the arguments of every pip."""
    calls, find = [], importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    monkeypatch.setattr(subprocess, "run", lambda command, check: calls.append(command[5:]))
    exec(list_code(READ["quickstart"])[0].source, {})
    return calls


def test_first_cell_leaves_jax_alone(monkeypatch, tmp_path):
    """It installs the clone without its dependencies, never a name on an index, where jaxspec is
    another project and this one is not; and it pins the installed JAX.
    """
    pins = [
        f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "flax", "numpy")
    ]
    assert run_first_cell(monkeypatch, set()) == []
    monkeypatch.chdir(QUICKSTART.parent)
    assert run_first_cell(monkeypatch, {"jaxspec", "gguf"}) == [
        ["--no-deps", str(ROOT), *pins],
        ["gguf", *pins],
    ]


def test_first_cell_needs_a_clone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="open this notebook in one"):
        run_first_cell(monkeypatch, {"jaxspec"})
