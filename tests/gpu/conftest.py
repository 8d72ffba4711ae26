"""Tests of this folder run on a GPU: `pytest -m gpu tests/gpu` with JAX_PLATFORMS=cuda."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            # A new JAX may warn on a device where nobody has run it yet.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def gpu():
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU")
