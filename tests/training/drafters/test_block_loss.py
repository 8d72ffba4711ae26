"""The objective on packed rows: no leakage between documents, nothing counted that should not be,
tiles that change nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.targets.transformer import Transformer
from training.drafters.dflash.forward import block_hidden
from training.drafters.dflash.loss import make_block_loss
from training.drafters.dflash.model import init_block_drafter, make_block_config
from training.drafters.model_options import ModelOptions
from training.loss.objective import LossOptions
from training.loss.teacher import compute_teacher_states, make_segment_mask
from training.loss.terms import compute_slot_weights
from training.loss.tiles import map_tiled_rows

SIZES = dict(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, vocab_size=37, tie_embeddings=True)
CONFIG = make_block_config(
    ModelOptions(block_size=4, num_layers=1, feature_layers=(0, 1), mask_token=36),
    TARGET,
    causal=True,
)


@pytest.fixture(scope="module")
def target():
    tokens = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)


@pytest.fixture(scope="module")
def params():
    return init_block_drafter(CONFIG, seed=1)


@pytest.fixture(scope="module")
def states_of():
    return jax.jit(lambda target, batch: compute_teacher_states(TARGET, target, (0, 1), batch))


def documents():
    """Two documents of 11 and 9 tokens, of which the first 3 are prompt, with anchors of each."""
    tokens = np.random.default_rng(0).integers(0, 36, 20).astype(np.int32)
    return (tokens[:11], [2, 4, 7]), (tokens[11:], [3, 5])


def batch_of(rows, length=24):
    """A batch whose rows each hold documents one after the other; at most five anchors a row."""
    fields = {
        name: np.zeros((len(rows), length), np.int32)
        for name in ("tokens", "segments", "positions", "loss_mask")
    }
    fields |= {
        "anchors": np.zeros((len(rows), 5), np.int32),
        "keep": np.zeros((len(rows), 5), bool),
    }
    for b, row in enumerate(rows):
        at = used = 0
        for number, (tokens, anchors) in enumerate(row, 1):
            place = slice(at, at + len(tokens))
            fields["tokens"][b, place], fields["segments"][b, place] = tokens, number
            fields["positions"][b, place] = np.arange(len(tokens))
            fields["loss_mask"][b, at + 3 : at + len(tokens)] = 1
            fields["anchors"][b, used : used + len(anchors)] = np.add(anchors, at)
            fields["keep"][b, used : used + len(anchors)] = True
            at, used = at + len(tokens), used + len(anchors)
    return jax.tree.map(jnp.asarray, fields)


def packed():
    return batch_of([documents()])


def apart():
    return batch_of([[document] for document in documents()])


def test_packing_changes_neither_loss_nor_gradient(target, params):
    loss = make_block_loss(CONFIG, TARGET, LossOptions("fkl", gamma=3.0, tile=7))

    def value(params, batch):
        sums = loss(params, target, batch)
        return sums["loss"][0], sums

    step = jax.jit(jax.grad(value, has_aux=True))
    (one, sums), (other, others) = step(params, packed()), step(params, apart())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), sums, others)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one, other)
    # 2 anchors of each document have all three slots to be learnt, the first document's last anchor
    # too: 11 - 7 = 4 tokens.
    assert float(sums["accept_length"][1]) == 5


def test_no_token_sees_another_document(target, states_of):
    batch = packed()
    changed = batch | {"tokens": batch["tokens"].at[0, :11].set(5)}
    states, after = states_of(target, batch), states_of(target, changed)
    np.testing.assert_array_equal(states.hidden[0, 11:20], after.hidden[0, 11:20])
    assert not np.allclose(states.hidden[0, :11], after.hidden[0, :11])


def test_a_block_sees_only_its_documents_context(target, params, states_of):
    batch = packed()
    features = states_of(target, batch).features
    hidden_of = jax.jit(
        lambda features: block_hidden(
            CONFIG, params, target["params"]["embedding"], batch, features
        )
    )
    hidden = hidden_of(features)
    # Anchor 3 of the second document (row 14) sees rows 11, 12 and 13.
    others = jnp.isin(jnp.arange(24), jnp.array([11, 12, 13]), invert=True)
    noisy = hidden_of(jnp.where(others[:, None], 9.0, features))
    np.testing.assert_array_equal(hidden[0, 3], noisy[0, 3])
    assert not np.allclose(hidden[0, 0], noisy[0, 0])


def test_slots_beyond_the_document_do_not_count():
    weights = compute_slot_weights(packed(), 4)
    assert weights[0, 2].tolist() == [0, 1, 1, 1]  # anchor 7 of 11 tokens
    assert weights[0, 4].tolist() == [0, 1, 1, 1]  # anchor 5 of 9 tokens
    late = packed() | {"anchors": jnp.array([[9, 10, 18, 19, 0]])}
    # The filler at 0 is in the prompt: of its slots only token 3 is to be learnt.
    assert compute_slot_weights(late, 4)[0].tolist() == [
        [0, 1, 0, 0],
        [0] * 4,
        [0, 1, 0, 0],
        [0] * 4,
        [0, 0, 0, 1],
    ]


def test_a_batch_with_nothing_to_learn_gives_zeros(target, params):
    batch = packed() | {"loss_mask": jnp.zeros((1, 24), jnp.int32)}
    loss = make_block_loss(CONFIG, TARGET, LossOptions())
    gradient, sums = jax.jit(
        jax.grad(lambda p: (lambda s: (s["loss"][0], s))(loss(p, target, batch)), has_aux=True)
    )(params)
    assert float(sums["loss"][0]) == float(sums["loss"][1]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_bfloat16_compute_is_close(target, params):
    values = [
        jax.jit(make_block_loss(CONFIG, TARGET, LossOptions(dtype=dtype)))(
            params, target, packed()
        )["loss"][0]
        for dtype in ("float32", "bfloat16")
    ]
    np.testing.assert_allclose(values[0], values[1], rtol=3e-2)


def test_segment_mask_packs_more_than_one_word():
    segments = jnp.asarray(np.repeat([[1, 2, 0]], 1, axis=0).repeat([30, 10, 5], axis=1))
    words = np.asarray(make_segment_mask(segments))
    bits = (
        (words[..., None] >> np.arange(32, dtype=np.uint32) & 1)
        .reshape(1, 45, -1)[..., :45]
        .astype(bool)
    )
    expected = np.tri(45, dtype=bool) & (
        np.asarray(segments)[0][:, None] == np.asarray(segments)[0]
    )
    np.testing.assert_array_equal(bits[0], expected)


def test_tiles_equal_the_whole_and_keep_nan_rows_out():
    generator = np.random.default_rng(0)
    hidden = jnp.asarray(generator.normal(size=(10, 4)), jnp.float32)
    head = jnp.asarray(generator.normal(size=(4, 6)), jnp.float32)
    label = jnp.asarray(generator.integers(0, 6, 10))

    def per_row(h, rows, head):
        logits = h @ head
        return -jax.nn.log_softmax(logits)[jnp.arange(len(rows)), rows], logits.argmax(-1)

    weights = jnp.asarray(generator.uniform(size=10), jnp.float32).at[3].set(0)

    def total(h, tile):
        values, best = map_tiled_rows(per_row, tile, h, label, head)
        return jnp.where(weights > 0, values * weights, 0).sum(), best

    (whole, best), expected = jax.value_and_grad(total, has_aux=True)(hidden, 10)
    for tile in (1, 3, 99):
        (value, found), gradient = jax.value_and_grad(total, has_aux=True)(hidden, tile)
        np.testing.assert_allclose(value, whole, rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)
        np.testing.assert_array_equal(found, best)
    direct = jax.grad(lambda h: (per_row(h, label, head)[0] * weights).sum())(hidden)
    np.testing.assert_allclose(expected, direct, atol=1e-6)
    gradient = jax.grad(lambda h: total(h, 3)[0])(hidden.at[3].set(jnp.nan))
    assert np.isfinite(gradient).all() and not gradient[3].any()


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="loss temperature is 0"):
        make_block_loss(CONFIG, TARGET, LossOptions(temperature=0))
    with pytest.raises(ValueError, match="gamma is 0: give a number above 0, or None"):
        make_block_loss(CONFIG, TARGET, LossOptions(gamma=0))
    with pytest.raises(ValueError, match="give --model.mask-token"):
        make_block_config(ModelOptions(), TARGET)
