"""Settings that must precede the first import of JAX."""

import gc
import importlib.metadata
import os
from pathlib import Path

import golden_data
import pytest

# Reference results are exact float32; a GPU's default matrix products are not. JAX_PLATFORMS=cuda
# overrides.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the suite's time is compilation; LLVM's optimiser changes neither the programs tested nor
# their layout. The older emitters of fusions compile in half the time; XLA ends the process at
# flags that it does not know, and jaxlib 0.12 has no such choice.
_FLAGS = "--xla_backend_optimization_level=0"
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("XLA_FLAGS", _FLAGS)

# Test modules, and the commands that they run, compile many programs more than once. All processes
# share what takes long, and so does the next run. JAX locks the folder only if its size is limited.
_COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": Path(__file__).parents[1] / ".pytest_cache" / "compiled",
    "JAX_COMPILATION_CACHE_MAX_SIZE": 1 << 31,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.3,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
}
for _name, _value in _COMPILED.items():
    os.environ.setdefault(_name, str(_value))

# Tests transpose weights on every processor, whether or not that is faster there.
os.environ.setdefault("JAXSPEC_PANELS", "1")

import jax

# Almost nothing that is imported is garbage; pytest_collection_finish looks once.
gc.disable()

# The memory maps of this process, one per line (Linux).
_MAPS = Path("/proc/self/maps")

# Functions that read the golden data.
_READERS = (golden_data.golden, golden_data.target_of, golden_data.arrays, golden_data.records)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of modules that read golden data, and those that ask a fixture for it."""
    for item in items:
        reads = any(value in _READERS for value in vars(item.module).values() if callable(value))
        if reads or "historical" in item.fixturenames:
            item.add_marker(pytest.mark.golden)


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections, of which every module of tests has one.

    It is most of a process's objects, and stays: a collection of them all takes half a second.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def free_executables():
    """Drop compiled programs after a module, if those of several have piled up.

    Modules share many small programs, which are not kept on disk.
    """
    yield
    if not _MAPS.is_file() or _count_maps() > 8_000:
        _drop_executables()


@pytest.fixture(autouse=True)
def free_memory_maps():
    """Drop compiled programs within a module that compiles very many.

    Each holds several memory maps. XLA crashes when the process reaches the kernel's limit, usually
    65,530.
    """
    yield
    if _count_maps() > 30_000:
        _drop_executables()


def _count_maps() -> int:
    """The memory maps of this process; 0 where the system does not list them."""
    return _MAPS.read_bytes().count(b"\n") if _MAPS.is_file() else 0


def _drop_executables() -> None:
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def eagle():
    """The tiny target with the random EAGLE-3 drafter that ship with the tests."""
    shipped = golden_data.SHIPPED
    return golden_data.load_eagle(shipped / "tiny_llama", shipped / "eagle3" / "draft")


@pytest.fixture(scope="module")
def mini():
    """Two layers of the model that ships, with DFlash."""
    from short_models import load_short

    return load_short()
