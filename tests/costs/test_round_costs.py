"""Tables of round costs: interpolation, axes, the device's view of them, and files."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.roofline import PeakRates, paper_bytes, paper_flops, roofline_costs
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import make_costs
from jaxspec.costs.row_costs import width_indices

BY_ROWS = make_costs(
    (1, 8, 32), (0, 100, 300), (1.0, 2.0, 2.0), [[10, 10, 20], [11, 12, 22], [20, 24, 40]]
)
BY_STEPS = make_costs(
    (1, 4, 12),
    (0, 100),
    0.0,
    [[3, 3], [4, 4], [6, 8]],
    plain=(2, 2),
    step=(1, 2),
    about={"device": "toy", "steps": 2},
)
BY_BLOCKS = make_costs((8,), (0, 100), 0.0, [[[2, 4]], [[3, 5]]], plain=1.0, blocks=(4, 8))
TABLES = {"rows": BY_ROWS, "steps": BY_STEPS, "blocks": BY_BLOCKS}


@pytest.mark.parametrize(
    ("context", "draft", "verify"),
    [
        (0, 1.0, [10, 11, 20]),
        (50, 1.5, [10, 11.5, 22]),
        (200, 2.0, [15, 17, 32]),
        (900, 2.0, [20, 22, 40]),
    ],
)
def test_times_are_linear_between_contexts_and_constant_beyond(context, draft, verify):
    found = BY_ROWS.by_rows().interpolate(jnp.int32(context))
    np.testing.assert_allclose(found[0], draft)
    np.testing.assert_allclose(found[1], verify)
    np.testing.assert_allclose(
        BY_ROWS.seconds(context, rows=(1, 8, 32)), draft + np.array(verify), rtol=1e-12
    )


def test_one_context_holds_everywhere():
    one = make_costs((1, 4), (64,), (1.0,), [[2.0], [3.0]])
    assert one.by_rows().interpolate(jnp.int32(7))[1].tolist() == [2.0, 3.0]
    assert one.seconds([7, 700], rows=4).tolist() == [4.0, 4.0]


def test_a_round_is_charged_its_steps_and_the_width_that_holds_its_rows():
    seconds = BY_STEPS.seconds([0, 50, 100], steps=[2, 0, -1], rows=[1, 5, 1])
    np.testing.assert_allclose(seconds, [2 * 1 + 3, 7, 2])
    whole = BY_STEPS.seconds(
        np.array([0, 50])[:, None, None], steps=np.arange(3)[:, None], rows=(1, 5)
    )
    assert whole.shape == (2, 3, 2)
    np.testing.assert_allclose(whole[:, 2, 1], [2 * 1 + 6, 2 * 1.5 + 7])
    np.testing.assert_allclose(BY_STEPS.seconds(0), 6)
    with pytest.raises(ValueError, match="costs reach 12 rows, not 13"):
        BY_STEPS.seconds(0, rows=13)
    np.testing.assert_allclose(BY_ROWS.seconds(0, steps=[0, -1], rows=8), [12, 10])
    with pytest.raises(ValueError, match="does not distinguish draft steps: measure"):
        BY_ROWS.seconds(0, steps=2)


def test_block_sizes_have_an_axis():
    np.testing.assert_allclose(BY_BLOCKS.seconds([0, 50], block=[4, 8]), [2, 4])
    with pytest.raises(ValueError, match=r"of \[4, 8\], and block sizes \[5\] are asked for"):
        BY_BLOCKS.seconds(0, block=5)
    with pytest.raises(ValueError, match=r"by block size: name one of \[4, 8\]"):
        BY_BLOCKS.seconds(0)
    with pytest.raises(ValueError, match="not by block size"):
        BY_ROWS.seconds(0, block=4)
    with pytest.raises(ValueError, match="give one that was measured by rows"):
        BY_BLOCKS.by_rows()


def test_the_devices_view_has_the_same_totals():
    view = BY_STEPS.by_rows(2)
    draft, verify = view.interpolate(jnp.int32(50))
    np.testing.assert_allclose(
        draft + verify, BY_STEPS.seconds(50, steps=2, rows=BY_STEPS.widths), rtol=1e-6
    )
    np.testing.assert_allclose(verify[0], 2)  # a round of autoregressive decoding
    with pytest.raises(ValueError, match="leave the number of steps out"):
        BY_ROWS.by_rows(2)


def test_the_rooflines_times():
    target = TargetConfig(
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=24,
        vocab_size=32,
    )
    device, widths, contexts = PeakRates(1e6, 2e6), (1, 8), (64, 256)
    bare = roofline_costs(target, device, widths, contexts, draft=0.5)
    for width in widths:
        for j, context in enumerate(contexts):
            flops, moved = (count(target, width, context) for count in (paper_flops, paper_bytes))
            np.testing.assert_allclose(
                bare.verify[0, width - 1, j], max(flops / 1e6, moved / 2e6), rtol=1e-6
            )
    assert bare.compiled == widths
    assert bare.draft.tolist() == [0.5, 0.5]
    fitted = roofline_costs(target, device, widths, contexts, fit=RooflineFit(2.0, 1.0, 2.0, 1.0))
    np.testing.assert_allclose(fitted.verify, 2 * bare.verify + 1, rtol=1e-6)


def test_a_tree_is_charged_the_smallest_width_that_holds_it():
    assert width_indices(12, (1, 8, 32)).tolist() == [0, *[1] * 7, *[2] * 4]
    assert width_indices(3, (1, 2)).tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", TABLES)
def test_tables_come_back_from_a_file(tmp_path, name):
    costs, path = TABLES[name], tmp_path / "deep" / "costs.json"
    save_costs(costs, path)
    found = load_costs(path)
    for field in dataclasses.fields(costs):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(costs, field.name))
    assert found.fingerprint == costs.fingerprint
    assert len({table.fingerprint for table in TABLES.values()}) == len(TABLES)
    changed = json.loads(path.read_text())
    changed["plain"][0] += 1
    path.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"costs\.json was changed since it was measured"):
        load_costs(path)


@pytest.mark.parametrize("text", ['{"widths": [1, 8', "{}", "[]", '{"verify": "one"}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json holds no table of round costs"):
        load_costs(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 8), (0,), (1,), [[1], [1]]), "the first 1"),
        (((1, 8), (5, 5), (1, 1), [[1, 1], [1, 1]]), "contexts are"),
        (((1, 8), (0,), (1,), [[1, 1]]), "it must be"),
        (((1, 8), (0,), (1, 2), [[1], [1]]), "draft has shape"),
        (((1, 8), (0,), (1,), [[1], [0]]), "not a positive number"),
        (((1, 8), (0,), (-1,), [[1], [1]]), "at least 0"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_costs(*arguments)
