"""Copies of weights compute the same products, and decoding reads them where it may."""

import gc
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.targets.layouts import registry
from jaxspec.targets.layouts.copies import COPIES, multiply_panels
from jaxspec.targets.linear import Weights, multiply
from jaxspec.targets.transformer import Transformer
from jaxspec.tuner import layout_speed, weight_layouts
from jaxspec.tuner.store import Store, describe_model
from jaxspec.tuner.tuner import process_tuner, tune
from jaxspec.tuner.weight_layouts import SWITCH, WeightLayouts
from pallas_kernels.versions import vectorizes_sums

pytestmark = pytest.mark.skipif(not vectorizes_sums(), reason="before jax 0.10 no copies are made")
TARGET = SHIPPED / "dflash" / "target"
PROMPT = [117, 142, 122, 64, 240, 19]
OWN = WeightLayouts(Store())
SIZES = layout_speed.Sizes(hidden=64, ffn=96, query=64, key=32, layers=2, rows=4)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.setenv(SWITCH, "32")


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(TARGET, drafter={"dflash": SHIPPED / "dflash" / "drafter"})


@pytest.mark.parametrize("lanes", tuple(COPIES))
@pytest.mark.parametrize("rows", [(2,), (5,), (1, 16), (2, 3, 2)])
def test_panels_multiply_like_the_matrix(rows, lanes):
    x, matrix = (
        jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(*rows, 96), (96, 64)])
    )
    exact = np.asarray(x, np.float64) @ np.asarray(matrix, np.float64)
    layout = COPIES[lanes]
    for given, axis in ((matrix, -2), (matrix.T, -1)):
        weights, made = layout.arrange(given, axis)
        assert weights is given
        assert made.shape == ((64, 96) if lanes == 1 else (64 // lanes, 96, lanes))
        assert Weights(given, {"panels": made}, axis).layouts() == [(layout, made)]
        np.testing.assert_allclose(layout.multiply(x, given, made, axis), exact, atol=2e-5)


@pytest.mark.parametrize("axis", [-2, -1])
@pytest.mark.parametrize("name", registry.LAYOUTS)
def test_every_layout_multiplies_by_what_it_arranged(name, axis):
    layout, matrix = registry.LAYOUTS[name], jax.random.normal(jax.random.key(0), (96, 64))
    x = jax.random.normal(jax.random.key(1), (1, 4, 96))
    values, added = layout.arrange(matrix if axis == -2 else matrix.T, axis)
    lying = Weights(values, {layout.collection: added}, axis)
    assert lying.layouts() == [(layout, added)] and layout.serves(4)
    assert layout.copies == (values.dtype == matrix.dtype)
    exact = np.asarray(x, np.float64) @ np.asarray(matrix, np.float64)
    error = np.abs(multiply(x, lying) - exact).max() / np.abs(exact).max()
    assert error < (1e-6 if layout.copies else 0.2 if layout.whole else 0.05)


@pytest.mark.parametrize(
    ("lanes", "most"), [(1, 32), pytest.param(8, 16, marks=pytest.mark.thorough)]
)
def test_one_row_and_many_rows_do_without_copies(lanes, most):
    matrix = jnp.ones((16, 8))
    nothing = Weights(matrix, {"panels": 0 * COPIES[lanes].arrange(matrix, -2)[1]})
    served = [n for n in range(1, 40) if not multiply(jnp.ones((1, n, 16)), nothing).any()]
    assert served == list(range(2, most + 1))


def test_a_transposed_matrix_stays_the_first_operand():
    # As the second one, YNNPACK would rearrange it every time.
    x, matrix = jnp.ones((4, 64)), jnp.ones((96, 64))
    compiled = jax.jit(multiply_panels).lower(x, matrix).compile().as_text()
    assert "f32[96,4]{1,0} dot(" in compiled and "f32[4,96]{1,0} dot(" not in compiled


def test_a_table_of_embeddings_is_transposed_already(monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    tied = jaxspec.load(SHIPPED / "targets" / "qwen3_tied")
    found = OWN.add_copies(tied, "ar", 2).target
    assert registry.find_layout(found) is COPIES[1]
    assert found["panels"]["embedding"] is tied.target["params"]["embedding"]


@pytest.mark.parametrize("lanes", ["1", "8"])  # the models are too small for more
@pytest.mark.parametrize(
    "name", slow_except(["qwen3_tied"], ["qwen3", "qwen3_tied", "llama", "qwen3_moe"])
)
def test_every_family_reads_panels(name, lanes, monkeypatch):
    params = jaxspec.load(SHIPPED / "targets" / name)
    model, tokens = Transformer(params.spec.target), jnp.asarray([[5, 9, 2, 7]])

    def logits(variables):
        out = model.apply(variables, tokens, jnp.arange(4)[None])
        return model.apply(variables, out.hidden, method="logits")

    monkeypatch.setenv(SWITCH, lanes)
    found = OWN.add_copies(params, "ar", 2).target
    np.testing.assert_allclose(logits(found), logits(params.target), atol=2e-5)
    for path, leaf in jax.tree.leaves_with_path(found["panels"]):
        broken = jax.tree.map_with_path(
            lambda at, x, path=path: 0 * x if at == path else x, found["panels"]
        )
        changed = np.abs(logits({**found, "panels": broken}) - logits(found)).max()
        assert changed > 1e-4, f"nothing reads the panels of {path}, {leaf.shape}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    slow_except([dict(temperature=1.0, seed=2)], [{}, dict(temperature=1.0, seed=2)]),
)
def test_decoding_with_panels_gives_the_same_tokens(params, sampling, monkeypatch):
    options = dict(max_new_tokens=24, drafter="dflash", budget=6, **sampling)
    tuner = process_tuner()
    session, _ = tune(prepare(params, PROMPT, **group_options(**options)), tuner)
    assert "panels" in session.params.target
    assert "panels" in session.params.drafter("dflash")
    found = jaxspec.decode(params, PROMPT, tuner=tuner, **group_options(**options))
    monkeypatch.setenv(SWITCH, "0")
    again, _ = tune(prepare(params, PROMPT, **group_options(**options)), tuner)
    assert again.params is params
    without = jaxspec.decode(params, PROMPT, **group_options(**options))
    assert list(found.tokens) == list(without.tokens)
    assert found.stats.rounds == without.stats.rounds
    assert list(found.tokens) == list(
        jaxspec.decode(
            params, PROMPT, max_new_tokens=24, drafter="ar", **group_options(**sampling)
        ).tokens
    )


def test_panels_are_made_once_and_follow_their_weights(params):
    first, again = (OWN.add_copies(params, "dflash", 1).target for _ in range(2))
    kernel = ("layers_0", "attention", "qkv", "kernel")

    def pick(target):
        found = target["panels"]
        for key in kernel:
            found = found[key]
        return found

    assert pick(first) is pick(again)
    doubled = params.replace(target=jax.tree.map(lambda x: 2 * x, params.target))
    other = OWN.add_copies(doubled, "dflash", 1).target
    np.testing.assert_array_equal(pick(other), 2 * pick(first))
    made = len(OWN.made)
    del doubled, other
    gc.collect()
    assert len(OWN.made) < made


@pytest.mark.parametrize(
    ("method", "batch", "dtype"),
    [("ar", 1, "float32"), ("dflash", 9, "float32"), ("dflash", 1, "bfloat16")],
)
def test_calls_that_would_not_gain_get_none(method, batch, dtype):
    params = jaxspec.load(TARGET, drafter={"dflash": SHIPPED / "dflash/drafter"}, dtype=dtype)
    assert OWN.add_copies(params, method, batch) is params


@pytest.mark.parametrize(("batch", "made"), [(16, True), (17, False)])
def test_larger_batches_read_transposed_weights(params, batch, made, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    assert (OWN.add_copies(params, "dflash", batch) is not params) == made


def test_a_large_batch_waits_for_no_measurement(params, monkeypatch):
    monkeypatch.setattr(WeightLayouts, "choose", lambda *_: pytest.fail("measured"))
    assert OWN.add_copies(params, "dflash", 17) is params


def test_quantised_abstract_and_large_models_get_none(params, monkeypatch):
    quantised = jaxspec.load(TARGET, drafter={}, quantize="int8")
    assert OWN.add_copies(quantised, "ar", 2) is quantised
    assert jax.eval_shape(lambda p: OWN.add_copies(p, "ar", 2), params) == jax.eval_shape(
        lambda p: p, params
    )
    monkeypatch.setattr(weight_layouts, "MOST_MEMORY", 0.0)
    assert OWN.add_copies(params, "ar", 2) is params


def test_costs_are_kept_for_each_width_of_panels(params, monkeypatch):
    described = []
    for switch in ("0", "1", "32"):
        monkeypatch.setenv(SWITCH, switch)
        described.append(describe_model(OWN.add_copies(params, "dflash", 1), "dflash")[-1])
    assert described == ["float32", "float32 transposed", "float32 panels of 32"]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Nothing was measured before, and layers take the seconds in the list that is returned."""
    seconds = []
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(layout_speed, "measure_layers", lambda sizes: seconds.pop())
    return seconds


@pytest.mark.parametrize(
    ("seconds", "lanes"),
    [((5, 5, 3, 2), 32), ((5, 5, 2, 3), 16), ((5, 5, 6, 7), 0), ((3, 5, 6, 7), 1)],
)
def test_the_fastest_panels_are_made_where_they_are_faster(params, measured, seconds, lanes):
    measured.append({"xla": 4.0, **dict(zip(map(str, tuple(COPIES)), seconds, strict=True))})
    for _ in range(2):  # the second as in another process, which measures nothing
        own = WeightLayouts(Store())
        found = [own.add_copies(params, "ar", 2) for _ in range(2)]
        assert [registry.find_layout(one.target) for one in found] == [COPIES.get(lanes)] * 2
        assert all((one is params) == (lanes == 0) for one in found)


def test_a_damaged_measurement_is_made_again(measured, tmp_path):
    slow = {str(lanes): 3.0 for lanes in tuple(COPIES)}
    measured += [{"xla": 1.0, **slow}, {"xla": 2.0, **slow, "8": 1.0}]
    assert layout_speed.find_fastest(SIZES, Store()) == 8
    (path,) = (tmp_path / "costs").iterdir()
    assert json.loads(path.read_text())["seconds"]["xla"] == 2.0
    path.write_text("[]")
    assert layout_speed.find_fastest(SIZES, Store()) == 0


def test_a_frozen_tuner_measures_nothing(measured, tmp_path):
    assert layout_speed.find_fastest(SIZES, Store(frozen=True)) == 0
    slow = {str(lanes): 3.0 for lanes in tuple(COPIES)}
    measured += [{"xla": 2.0, **slow, "8": 1.0}]
    for store in (Store(), Store(frozen=True)):
        assert layout_speed.find_fastest(SIZES, store) == 8


def test_targets_of_other_sizes_and_rows_are_measured_apart(measured):
    slow = {str(lanes): 3.0 for lanes in tuple(COPIES)}
    measured += [{"xla": 2.0, **slow, lanes: 1.0} for lanes in ("8", "16", "32")]
    other = [SIZES, SIZES._replace(hidden=128), SIZES._replace(rows=8)]
    assert [layout_speed.find_fastest(one, Store()) for one in other] == [32, 16, 8]
    assert [layout_speed.find_fastest(one, Store()) for one in other] == [32, 16, 8]


def test_layers_of_the_targets_own_sizes_are_measured(params, monkeypatch):
    config = params.spec.target
    sizes = layout_speed.choose_sizes(config, 3)
    assert sizes == (
        config.hidden_size,
        config.ffn_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
        config.num_layers,
        4,
    )
    assert layout_speed.choose_sizes(config, 5) == sizes._replace(rows=8)
    layer = 4 * sum(inputs * outputs for inputs, outputs in sizes.matrices())
    for weights, layers in ((layer, 1), (layer + 1, 2), (1000 * layer, config.num_layers)):
        monkeypatch.setattr(layout_speed, "WEIGHT_BYTES", weights)
        assert layout_speed.choose_sizes(config, 4) == sizes._replace(layers=layers)


def test_what_is_multiplied_is_what_layers_hold(params):
    layer = jax.tree.leaves(params.target["params"]["layers_0"])
    held = sorted(one.shape for one in layer if one.ndim == 2)
    assert held == sorted(layout_speed.choose_sizes(params.spec.target, 4).matrices())


@pytest.mark.parametrize(
    ("method", "batch", "rows"), [("dflash", 1, 4), ("dflash", 2, 8), ("ar", 4, 4)]
)
def test_the_rows_of_all_sequences_decide(params, measured, monkeypatch, method, batch, rows):
    asked = []
    monkeypatch.setattr(
        weight_layouts, "find_fastest", lambda sizes, store: asked.append(sizes.rows) or 32
    )
    WeightLayouts(Store()).add_copies(params, method, batch)
    assert asked == [rows]


def test_panels_that_divide_the_sizes_are_measured():
    seconds = layout_speed.measure_layers(SIZES)
    assert set(seconds) == {"xla", "1", "8", "16", "32"} and min(seconds.values()) > 0
    assert set(layout_speed.measure_layers(SIZES._replace(hidden=72))) == {"xla", "1", "8"}


def test_an_unknown_number_of_lanes_is_refused(params, monkeypatch):
    monkeypatch.setenv(SWITCH, "12")
    with pytest.raises(ValueError, match="JAXSPEC_PANELS is '12': give one of 0, 1, 8, 16, 32"):
        OWN.add_copies(params, "ar", 2)


def test_changed_weights_get_panels_of_the_same_lanes(params, monkeypatch):
    given = OWN.add_copies(params, "ar", 2).target
    monkeypatch.setenv(SWITCH, "8")
    found = registry.like(params.target, given)
    assert registry.find_layout(found) is COPIES[32]
    assert registry.like(params.target, params.target) is params.target
    empty = {**params.target, "panels": {}}
    assert registry.like(params.target, empty)["panels"] == {}
