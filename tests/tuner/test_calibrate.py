"""Measured tables: their shape, where they are kept, and what is refused."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.costs.files import save_costs
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import save_policy
from jaxspec.targets.layouts import quant
from jaxspec.tuner.calibrate.by_rows import (
    ROW_COSTS,
    about,
    calibrate,
    default_widths,
    measured,
    policy_for,
    table_path,
    timed,
)
from jaxspec.tuner.calibrate.by_steps import calibrate_steps
from jaxspec.tuner.calibrate.round_clock import default_contexts, sample_tokens

GOLDEN = SHIPPED / "dflash"


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
    assert path.parent == tmp_path / "costs" and path != table_path(
        params, "dflash", **options | {"temperature": 1.0}
    )
    table = measured(params, "dflash", contexts=(32,), repeats=1, **options)
    assert table.widths == (1, 2) and table.verify.shape == (1, 2, 1) and path.is_file()
    modified = path.stat().st_mtime_ns
    again = measured(params, "dflash", **options)
    assert again.verify.tolist() == table.verify.tolist() and path.stat().st_mtime_ns == modified
    out = jaxspec.decode(
        params,
        [117, 142],
        **group_options(policy=make_bastion(again), **options),
        drafter="dflash",
        max_new_tokens=8,
    )
    assert out.stats.emitted == 8


def test_other_weights_and_other_sampling_have_other_times(params):
    quantised = jax.eval_shape(lambda params: quant.quantize_params(params, "int8"), params)
    options = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}]
    paths = [
        table_path(one, "dflash", **timed(more)) for one in (params, quantised) for more in options
    ]
    assert len(set(paths)) == 6 and timed({"seed": 1, "min_p": 0.1, "top_k": None}) == {
        "min_p": 0.1
    }


def test_a_target_is_known_by_its_weights(params):
    quantised = quant.quantize_params(params, "int8")
    rounded = params.replace(target=jax.tree.map(lambda x: x.astype(jnp.bfloat16), params.target))
    other = params.replace(target=jax.tree.map(lambda x: 2 * x, params.target))
    same, quantised, rounded, other = (
        about(one, "dflash", {})["target"] for one in (params, quantised, rounded, other)
    )
    assert same == quantised == rounded != other and same.startswith("qwen3 of ")


def test_a_saved_policy_for_another_target_or_table_warns(params, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    options, table = {"budget": 2}, make_costs((1, 2), (0,), (1.0,), [[1.0], [2.0]])
    made_for = about(params, "dflash", options)
    save_policy(make_static(rows=2), tmp_path / "kept", made_for | {ROW_COSTS: table.fingerprint})
    save_policy(
        make_static(rows=2),
        tmp_path / "other",
        made_for | {"target": "another", "round costs by steps": "one"},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy_for(params, "dflash", str(tmp_path / "kept"), options)  # no table is kept here
        save_costs(table, table_path(params, "dflash", **options))
        assert int(policy_for(params, "dflash", str(tmp_path / "kept"), options).controls.rows) == 2
    with pytest.warns(UserWarning, match="trained for target another, not qwen3 of"):
        policy_for(params, "dflash", str(tmp_path / "other"), options)
    save_costs(
        make_costs((1, 2), (0,), (1.0,), [[1.0], [3.0]]), table_path(params, "dflash", **options)
    )
    with pytest.warns(UserWarning, match=f"trained for {ROW_COSTS} {table.fingerprint}, not "):
        policy_for(params, "dflash", str(tmp_path / "kept"), options)


def test_the_default_builder_is_the_same_by_name(params):
    builders = [
        about(params, "dflash", {"builder": name})["builder"]
        for name in (None, "best_first", "chain")
    ]
    assert builders == ["best_first", "best_first", "chain"]
    # By default too.
    assert len({table_path(params, "dflash", builder=name) for name in ("best_first", None)}) == 1
    assert table_path(params, "dflash") == table_path(params, "dflash", builder=None)
    assert table_path(params, "dflash") != table_path(params, "dflash", builder="beam")


def test_refusals(params):
    with pytest.raises(ValueError, match="from 1 to the budget, 8"):
        calibrate(params, "dflash", budget=8, widths=(2, 8))
    with pytest.raises(ValueError, match="drafts nothing"):
        calibrate(params, "ar", budget=8)


@pytest.fixture(scope="module")
def short(params):
    """The model with 128 positions: fewer than `jaxspec.decode`'s default answer has tokens."""
    target = dataclasses.replace(params.spec.target, max_positions=128)
    return params.replace(spec=dataclasses.replace(params.spec, target=target))


@pytest.mark.slow
def test_a_short_target_is_measured_by_rows_and_by_steps(short):
    options = {"builder": "best_first"}
    assert sample_tokens(short, {"drafter": "dflash", **options}) == 64
    by_rows = calibrate(short, "dflash", budget=2, repeats=1, **options)
    by_steps = calibrate_steps(short, "dflash", (2,), repeats=1, **options)
    for costs in (by_rows, by_steps):
        assert costs.contexts.tolist() == [64] and costs.widths == (1, 2)
        assert (costs.seconds(10, rows=[1, 2], steps=[-1, 0]) > 0).all()
    assert by_steps.about["steps"] == 0 and by_steps.about["error"] >= 0
    with pytest.raises(ValueError, match="contexts reach 128 tokens and the model has 128"):
        calibrate(short, "dflash", budget=2, contexts=(128,))
