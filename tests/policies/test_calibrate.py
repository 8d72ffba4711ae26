"""Measured tables: their shape, where they are kept, and what is refused."""

from pathlib import Path

import jax
import pytest

import jaxspec
from jaxspec import quant
from jaxspec.calibrate import about, calibrate, default_contexts, default_widths, measured, table_path, timed
from jaxspec.policies.controller import make_policy

GOLDEN = Path(__file__).parent.parent / "golden" / "dflash"


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})


def test_defaults():
    assert default_widths(32) == (1, 2, 4, 8, 16, 32)
    assert default_widths(12) == (1, 2, 4, 8, 12)
    assert default_widths(1) == (1,)
    assert default_contexts(2048, 32) == (64, 256, 1024)
    assert default_contexts(40960, 256) == (64, 256, 1024, 4096, 16384)


@pytest.mark.slow
def test_a_table_is_measured_once_and_kept(params, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    options = {"budget": 2, "builder": "best_first"}
    path = table_path(params, "dflash", **options)
    assert path.parent == tmp_path / "latency" and path != table_path(params, "dflash", **options | {"temperature": 1.0})
    table = measured(params, "dflash", contexts=(32,), repeats=1, **options)
    assert table.widths == (1, 2) and table.verify.shape == (2, 1) and path.is_file()
    modified = path.stat().st_mtime_ns
    again = measured(params, "dflash", **options)
    assert again.verify.tolist() == table.verify.tolist() and path.stat().st_mtime_ns == modified
    out = jaxspec.decode(params, [117, 142], policy=make_policy(again), method="dflash", max_new_tokens=8, **options)
    assert out.stats.emitted == 8


def test_other_weights_and_other_sampling_have_other_times(params):
    quantised = jax.eval_shape(lambda params: quant.quantize_params(params, "int8"), params)
    options = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}]
    paths = [table_path(one, "dflash", **timed(more)) for one in (params, quantised) for more in options]
    assert len(set(paths)) == 6 and timed({"seed": 1, "min_p": 0.1, "top_k": None}) == {"min_p": 0.1}


def test_a_builder_by_another_name_is_the_same(params):
    builders = [about(params, "dflash", {"builder": name})["builder"] for name in (None, "ddtree", "best_first", "chain")]
    assert builders == ["best_first", "best_first", "best_first", "chain"]


def test_refusals(params):
    with pytest.raises(ValueError, match="from 1 to the budget, 8"):
        calibrate(params, "dflash", budget=8, widths=(2, 8))
    with pytest.raises(ValueError, match="drafts nothing"):
        calibrate(params, "ar", budget=8)
