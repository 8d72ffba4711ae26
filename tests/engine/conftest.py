"""What tests of the automatic policy share: a model, and nothing learned before."""

import pytest
from short_models import load_short

from jaxspec.call import automatic, recheck


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of kept costs, empty; this process has learned nothing."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(automatic, "_learned", {})
    monkeypatch.setattr(recheck, "_schedules", {})
    return tmp_path / "costs"
