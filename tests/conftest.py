"""Settings that must precede the first import of JAX."""

import gc
import os

import pytest

# Reference results are exact float32; a GPU's default matrix products are not. JAX_PLATFORMS=cuda overrides.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the suite's time is compilation; LLVM's optimiser changes neither the programs tested nor their layout.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax  # noqa: E402  (after the settings above)


@pytest.fixture(autouse=True, scope="module")
def free_executables():
    """Drop compiled programs after each module: hundreds of them exhaust the memory maps that a process may hold."""
    yield
    jax.clear_caches()
    gc.collect()
