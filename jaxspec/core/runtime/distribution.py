"""What is installed, and the command that installs what is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
from pathlib import Path

OURS = "jax-speculative"
THEIRS = "jaxspec"  # X-ray spectral fitting
KERNELS = "pallas_kernels"

# What `training` imports, in the order in which it is looked for.
TRAIN = ("optax", "orbax.checkpoint", "grain", "tensorboardX", "matplotlib", "tyro")


def check() -> None:
    """Refuse to run if another package or folder took the place of this distribution's modules.

    The X-ray astronomy package `jaxspec` on PyPI writes to the same `jaxspec` folder: the later one
    has overwritten files of the other. A folder `pallas_kernels` of the user's, in the folder that
    Python was started in, comes before the installed one.

    Raises:
      ImportError: names it, and what repairs the installation.
    """
    try:
        version = importlib.metadata.version(THEIRS)
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version is not None:
        raise ImportError(
            f"the PyPI package 'jaxspec' {version} (X-ray astronomy) is installed and shares the "
            f"import name of {OURS}: run `pip uninstall jaxspec`, then install {OURS} again with "
            "`pip install --force-reinstall --no-deps` and its folder or wheel"
        )
    _check_kernels(Path(__file__).parents[3])


def _check_kernels(library: Path) -> None:
    """Refuse a package of kernels that does not lie beside this one, in `library`."""
    found = importlib.util.find_spec(KERNELS)
    where = None if found is None or found.origin is None else Path(found.origin).parents[1]
    if where is None or where.resolve() != library.resolve():
        raise ImportError(
            f"{library / KERNELS} is missing: install {OURS} again"
            if not (library / KERNELS).is_dir() or where is None
            else f"{where / KERNELS} hides the package of that name that jaxspec needs: "
            "rename it, or start Python in another folder"
        )


def require(extra: str, *modules: str, importer: str | None = None) -> None:
    """Refuse to go on without the modules of an extra.

    Args:
      extra: of this distribution.
      modules: what is needed of it.
      importer: a package that cannot be imported without it: `python -m` of a module in it then
        ends with one line.

    Raises:
      ImportError: one is not installed; the message has the command that installs it.
    """
    for name in modules:
        if not is_installed(name):
            raise ImportError(f"{name} is missing: {how_to_install(extra, name)}", name=importer)


def how_to_install(extra: str, module: str) -> str:
    """Return the command that installs an extra, for a clone or for an installed wheel.

    The distribution is on no index, so its name alone would install nothing.

    Args:
      extra: of this distribution.
      module: one of its modules, to install if nothing is known of the extra.
    """
    clone = Path(__file__).parents[3]
    if (clone / "pyproject.toml").is_file():
        folder = "." if clone == Path.cwd() else clone
        return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"
    try:
        wanted = importlib.metadata.requires(OURS) or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    # "optax>=0.2.5; extra == 'train'"; quotes of either kind.
    parts = [line.partition(";") for line in wanted]
    found = [name.strip() for name, _, marker in parts if f"'{extra}'" in marker.replace('"', "'")]
    return f"pip install {' '.join(map(shlex.quote, found)) or module.partition('.')[0]}"


def is_installed(module: str) -> bool:
    """Whether a module can be imported; it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that the module is in
        return False
