"""What tests of the tuner share: nothing learned before."""

import pytest

from jaxspec.call import automatic, recheck


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of kept costs, empty; this process has learned nothing."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(automatic, "_learned", {})
    monkeypatch.setattr(recheck, "_schedules", {})
    return tmp_path / "costs"
