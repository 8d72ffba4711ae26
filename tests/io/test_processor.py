"""The processor's name, which files of measurements are called by."""

import pytest

from jaxspec.io import processor

CPUINFO = """processor : 0
cpu family : 6
model : 85
model name : Some CPU @ 2.00GHz
stepping : 3

processor : 1
model name : Another CPU
"""


@pytest.fixture(autouse=True)
def unknown():
    processor.describe_processor.cache_clear()
    yield
    processor.describe_processor.cache_clear()


def test_linux_names_the_first_core(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_LINUX", tmp_path / "cpuinfo")
    processor._LINUX.write_text(CPUINFO)
    assert processor.describe_processor().startswith("Some CPU @ 2.00GHz (6/85/3), ")


@pytest.mark.parametrize("text", [None, "", "Hardware : BCM2835\n"])
def test_others_are_named_by_python(text, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_LINUX", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "arm64")
    if text is not None:
        processor._LINUX.write_text(text)
    assert processor.describe_processor().startswith("arm64, ")
