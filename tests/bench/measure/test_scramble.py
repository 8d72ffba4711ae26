"""Scrambled drafters, the control of policies that must notice when drafting does not pay."""

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.bench.measure.scramble import scramble_drafter, scramble_drafters

GOLDEN = SHIPPED / "dflash"


def test_scrambled_weights_keep_their_entries():
    params = jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})
    one, again, other = (
        scramble_drafter(params, "dflash", seed).drafters["dflash"] for seed in (1, 1, 2)
    )
    before = jax.tree.leaves(params.drafters["dflash"])
    for old, new, same in zip(before, jax.tree.leaves(one), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.sort(new, axis=None), np.sort(old, axis=None))
        np.testing.assert_array_equal(new, same)
    assert any((a != b).any() for a, b in zip(before, jax.tree.leaves(one), strict=True))
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(one), strict=True)
    )
    with pytest.raises(ValueError, match="unknown drafter 'eagle'"):
        scramble_drafter(params, "eagle", 1)
    with pytest.raises(ValueError, match="'prompt_lookup' has no weights to scramble"):
        scramble_drafter(params, "prompt_lookup", 1)


@pytest.mark.thorough
def test_all_drafters_with_weights_are_scrambled():
    params = jaxspec.load("mini", drafter={"jetspec": "jetspec", "medusa": "medusa"})
    scrambled = scramble_drafters(params, 1)
    for name in ("jetspec", "medusa"):
        one = jax.tree.leaves(scramble_drafter(params, name, 1).drafters[name])
        for expected, new in zip(one, jax.tree.leaves(scrambled.drafters[name]), strict=True):
            np.testing.assert_array_equal(new, expected)
    assert scrambled.target is params.target
    with pytest.raises(ValueError, match="no drafter with weights to scramble is loaded"):
        scramble_drafters(params.replace(drafters={}), 1)
