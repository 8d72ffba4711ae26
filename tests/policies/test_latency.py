"""The table of round times: interpolation, which width is charged, and files."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.costs.calibration import Fit
from jaxspec.costs.latency_table import (
    bucket_of,
    load_table,
    make_table,
    roofline_table,
    save_table,
)
from jaxspec.costs.roofline import Device, paper_bytes, paper_flops

TABLE = make_table(
    (1, 8, 32), (0, 100, 300), (1.0, 2.0, 2.0), [[10, 10, 20], [11, 12, 22], [20, 24, 40]]
)


def test_times_are_linear_between_contexts_and_flat_beyond():
    for context, draft, verify in (
        (0, 1.0, [10, 11, 20]),
        (50, 1.5, [10, 11.5, 22]),
        (200, 2.0, [15, 17, 32]),
        (900, 2.0, [20, 22, 40]),
    ):
        found = TABLE.at(jnp.int32(context))
        np.testing.assert_allclose(found[0], draft)
        np.testing.assert_allclose(found[1], verify)
    one = make_table((1, 4), (64,), (1.0,), [[2.0], [3.0]])
    assert one.at(jnp.int32(7))[1].tolist() == [2.0, 3.0]


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
    device, widths, contexts = Device(1e6, 2e6), (1, 8), (64, 256)
    bare = roofline_table(target, device, widths, contexts, draft=0.5)
    for i, width in enumerate(widths):
        for j, context in enumerate(contexts):
            flops, moved = (count(target, width, context) for count in (paper_flops, paper_bytes))
            np.testing.assert_allclose(bare.verify[i, j], max(flops / 1e6, moved / 2e6), rtol=1e-6)
    assert bare.draft.tolist() == [0.5, 0.5]
    fitted = roofline_table(target, device, widths, contexts, fit=Fit(2.0, 1.0, 2.0, 1.0))
    np.testing.assert_allclose(fitted.verify, 2 * bare.verify + 1, rtol=1e-6)


def test_a_tree_is_charged_what_its_bucket_costs():
    assert bucket_of(12, (1, 8, 32)).tolist() == [0, *[1] * 7, *[2] * 4]
    assert bucket_of(3, (1, 2)).tolist() == [0, 1, 1]


def test_files(tmp_path):
    save_table(TABLE, tmp_path / "deep" / "table.json", {"device": "cpu"})
    found = load_table(tmp_path / "deep" / "table.json")
    assert found.widths == TABLE.widths
    np.testing.assert_array_equal(found.verify, TABLE.verify)
    (tmp_path / "cut.json").write_text('{"widths": [1, 8')
    with pytest.raises(ValueError, match="no table of round times"):
        load_table(tmp_path / "cut.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 8), (0,), (1,), [[1], [1]]), "the first 1"),
        (((1, 8), (5, 5), (1, 1), [[1, 1], [1, 1]]), "contexts are"),
        (((1, 8), (0,), (1,), [[1, 1]]), "they must be"),
        (((1, 8), (0,), (1,), [[1], [0]]), "not a positive number"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_table(*arguments)
