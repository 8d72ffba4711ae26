"""Loads and first calls are measured in processes of their own."""

import pytest
from golden_data import SHIPPED

from benchmarks.loading.measure_first_calls import measure_first_calls, render_first_calls
from benchmarks.loading.measure_load import measure_load, render_load


@pytest.mark.thorough
def test_measured_loads(tmp_path):
    lines = []
    report = measure_load(0.02, shards=2, repeats=1, folder=tmp_path, progress=lines.append)
    (sample,) = report["samples"]
    assert report["bytes"] == sample["weight_bytes"] == pytest.approx(2e7, rel=0.2)
    assert sample["seconds"] > 0 and sample["read_seconds"] > 0 and len(lines) == 2
    assert sample["peak_bytes"] < 5e8 and not list(tmp_path.iterdir())
    assert "peak host memory beyond the weights" in render_load(report)
    with pytest.raises(ValueError, match="--gigabytes 0.001 is too small"):
        measure_load(0.001, folder=tmp_path)
    with pytest.raises(ValueError, match="--shards, --repeats and --tp must be at least 1"):
        measure_load(0.02, shards=0, folder=tmp_path)


@pytest.mark.slow
def test_measured_first_calls():
    lines, model = [], str(SHIPPED / "dflash" / "target")
    report = measure_first_calls(
        model, "ar", repeats=1, prompt_tokens=5, max_new_tokens=4, progress=lines.append
    )
    (sample,) = report["samples"]["ar"]
    assert sample["seconds"] > sample["repeated_seconds"] > 0 and len(lines) == 1
    assert 0 < sample["compile_seconds"] < 2 * sample["seconds"]
    assert "first call" in render_first_calls(report) and "jax" in report["versions"]
    with pytest.raises(ValueError, match="repeats"):
        measure_first_calls(model, "ar", repeats=0)
    with pytest.raises(ValueError, match="the call of 'ar' failed"):
        measure_first_calls("no-such-model", "ar", repeats=1)
