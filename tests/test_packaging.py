import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from jaxspec.core import distribution as _distribution

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


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
        "import jaxspec; from jax._src import xla_bridge; assert not xla_bridge._backends, xla_bridge._backends"
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
    # Measured results are kept in version control alone.
    data = {path for path in data if "results" not in path.relative_to(package).parts}
    assert data <= shipped, sorted(data - shipped)
    assert not [path for path in shipped if "results" in path.relative_to(package).parts]


def test_distribution_name_and_extras():
    project = PROJECT["project"]
    assert project["name"] == _distribution.OURS
    assert set(project["optional-dependencies"]) == {
        "cuda12",
        "cuda13",
        "train",
        "bench",
        "serve",
        "aot",
        "dev",
    }
    assert not any(name.startswith("torch") for name in project["dependencies"])
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
