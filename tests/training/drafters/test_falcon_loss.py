"""Falcon's glancing: which rows are replaced, what they give away and what they are left out of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.targets.transformer import Transformer
from training.drafters.falcon import init_falcon
from training.drafters.falcon.loss import choose, make_chains, make_falcon_loss
from training.loss.objective import LossOptions

SIZES = dict(hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, num_layers=2, vocab_size=23)
CONFIG = FalconConfig(
    **SIZES,
    num_layers=1,
    feature_layers=(0, 1),
    target_hidden_size=16,
    vocab_size=23,
    slots=3,
    lstm_size=4,
)
BATCH = {
    "tokens": np.random.default_rng(1).integers(0, 23, (2, 16)).astype(np.int32),
    "positions": np.tile(np.arange(16, dtype=np.int32), (2, 1)),
    "segments": np.ones((2, 16), np.int32),
    "loss_mask": np.ones((2, 16), bool),
    "anchors": np.array([[3, 5, 6], [4, 5, 15]], np.int32),
    "keep": np.ones((2, 3), bool),
}


@pytest.mark.parametrize(("slots", "glance"), [(2, 0.25), (4, 1.0)])
def test_as_many_rows_as_the_ratio_says(slots, glance):
    """Half of the rows wrong: `glance` of these are replaced, up to half of every block."""
    count = 6000
    batch = {"anchors": np.zeros((2, count), np.int32), "tokens": np.array([[1], [2]])}
    right = np.zeros((2, count, slots), bool)
    right[..., ::2] = True
    replaced = np.asarray(choose(batch, right, np.ones_like(right), glance, seed=0))
    share = replaced.sum((1, 2)) / (~right).sum((1, 2))
    np.testing.assert_allclose(share, glance, atol=0.05)
    assert (replaced[..., :-1] >= replaced[..., 1:]).all() and not replaced[..., -1].any()
    assert (replaced[0] != replaced[1]).any()
    assert not choose(batch, ~np.zeros_like(right), np.ones_like(right), glance, seed=0).any()


def test_replaced_rows_tell_later_rows_of_their_block_only():
    """A row reads the pair three places further on: other anchors and the unglanced rest do not
    change.
    """
    shapes = jax.eval_shape(lambda: init_falcon(CONFIG, 0))
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: generator.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes
    )
    features = np.random.default_rng(0).normal(size=(2, 16, 32)).astype(np.float32)
    embedding = jax.random.normal(jax.random.key(0), (23, 16))
    given = np.zeros((2, 3, 3), bool)
    given[0, 1, :2] = True

    @jax.jit
    def hidden(batch, replaced):
        return make_chains(CONFIG, params, embedding, batch, features)(replaced, 1)

    plain, glanced = hidden(BATCH, np.zeros_like(given)), hidden(BATCH, given)
    changed = np.abs(plain - glanced).max((2, 3)) > 1e-5
    assert changed.tolist() == [[False, True, False], [False] * 3]
    other = BATCH | {"tokens": BATCH["tokens"].copy()}
    other["tokens"][0, 7] = (
        other["tokens"][0, 7] + 1
    ) % 23  # the second replaced row's token: anchor 5, two places on
    again = hidden(other, given)
    assert np.abs(again - glanced)[0, 1].max() > 1e-5 and np.abs(again - glanced)[0, 0].max() == 0


@pytest.mark.slow
def test_replaced_rows_learn_nothing():
    tokens = jnp.zeros((1, 2), jnp.int32)
    target = jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)
    params = init_falcon(CONFIG, 0)
    sums = [
        jax.jit(make_falcon_loss(CONFIG, TARGET, LossOptions("ce"), glance=glance))(
            params, target, BATCH
        )
        for glance in (0.0, 1.0)
    ]
    # 9 slots of five anchors (nothing follows the last one), of which some are missing at the end
    # of the rows.
    assert float(sums[0]["loss"][1]) == 9 + 9 + 9 + 9 + 9
    # Random weights are wrong about nearly everything, so that nearly all blocks were glanced at:
    # one or two rows are left.
    assert 5 <= float(sums[1]["loss"][1]) < 20 and float(sums[1]["accept_length"][1]) <= 1


def test_options_out_of_range():
    with pytest.raises(ValueError, match="glance is 2: give a ratio from 0 to 1"):
        make_falcon_loss(CONFIG, TARGET, LossOptions(), glance=2)
