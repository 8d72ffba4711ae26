"""What tests of the tuner share: nothing learned before."""

import pytest

from jaxspec.tuner import tuner


@pytest.fixture
def begin_anew(monkeypatch):
    """Let the process's tuner have learned nothing, as that of another process would."""
    return lambda: monkeypatch.setattr(tuner, "_process", None)


@pytest.fixture
def cache(tmp_path, monkeypatch, begin_anew):
    """The folder of kept costs, empty; this process has learned nothing."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    begin_anew()
    return tmp_path / "costs"
