"""Settings that must precede the first import of JAX."""

import gc
import os

import pytest

# Reference results are exact float32; a GPU's default matrix products are not. JAX_PLATFORMS=cuda
# overrides.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the suite's time is compilation; LLVM's optimiser changes neither the programs tested nor
# their layout.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax  # noqa: E402  (after the settings above)


@pytest.fixture(autouse=True, scope="module")
def free_executables():
    """Drop compiled programs after each module: hundreds of them exhaust the memory maps that a
    process may hold.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def eagle():
    """A random target of two layers with the random EAGLE-3 drafter of the golden data."""
    import dataclasses
    from pathlib import Path

    import jaxspec
    from jaxspec.core.params import Params
    from jaxspec.drafters.eagle3.files import config_from_hf, for_target, read
    from jaxspec.io.safetensors_files import read_json

    golden = Path(__file__).parent / "golden"
    target, folder = (
        jaxspec.load(golden / "tiny_llama", dtype="float32"),
        golden / "eagle3" / "draft",
    )
    config = for_target(config_from_hf(read_json(folder / "config.json")), target.spec.target)
    spec = dataclasses.replace(target.spec, drafters=(("eagle3", config),))
    return Params(target.target, {"eagle3": read(folder, config, "float32")}, spec)
