"""The objectives of ParallelSpec and Falcon on packed rows, and that they are learnt."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.parallelspec.network import ParallelSpecConfig
from jaxspec.targets.transformer import Transformer
from training.drafters.falcon import init_falcon
from training.drafters.falcon.loss import make_falcon_loss
from training.drafters.parallelspec import init_parallelspec, make_parallelspec_loss
from training.loss.objective import LossOptions

SIZES = dict(hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, num_layers=3, vocab_size=23, tie_embeddings=True)
PAIRS = dict(
    **SIZES,
    num_layers=1,
    feature_layers=(0, 1, 2),
    target_hidden_size=16,
    vocab_size=23,
    draft_vocab_size=17,
)
KINDS = {
    "parallelspec": (
        ParallelSpecConfig(**PAIRS, slots=3),
        init_parallelspec,
        make_parallelspec_loss,
        {},
    ),
    "falcon": (
        FalconConfig(**PAIRS, slots=2, blocks=2, lstm_size=8),
        init_falcon,
        make_falcon_loss,
        {"glance": 0.0},
    ),
}
LENGTH = 24


@pytest.fixture(scope="module")
def target():
    tokens = jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)
    return jax.tree.map(lambda leaf: 8 * leaf if leaf.ndim > 1 else leaf, params) | {
        "draft": {"ids": jnp.arange(3, 20)}
    }


def row_of(*documents):
    """A batch of one row of documents (tokens, anchors), of whose tokens the first two are not to
    be learnt.
    """
    fields = {
        name: np.zeros((1, LENGTH), np.int32)
        for name in ("tokens", "segments", "positions", "loss_mask")
    }
    anchors, at = [], 0
    for number, (tokens, of_document) in enumerate(documents, 1):
        place = slice(at, at + len(tokens))
        fields["tokens"][0, place], fields["segments"][0, place] = tokens, number
        fields["positions"][0, place] = np.arange(len(tokens))
        fields["loss_mask"][0, at + 2 : at + len(tokens)] = 1
        anchors, at = anchors + [at + anchor for anchor in of_document], at + len(tokens)
    filled = np.array([anchors + [0] * (8 - len(anchors))], np.int32)
    return fields | {"anchors": filled, "keep": np.arange(8)[None] < len(anchors)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_packing_changes_nothing_and_loss_falls(target, kind):
    config, init, make, more = KINDS[kind]
    loss = make(config, TARGET, LossOptions(gamma=2.0, tile=7, anchor_chunk=3), **more)

    def total(params, batch):
        found = loss(params, target, batch)
        return found["loss"][0], found

    step = jax.jit(jax.value_and_grad(total, has_aux=True))
    tokens = np.random.default_rng(0).integers(0, 23, 21)
    documents = (tokens[:12], [0, 1, 3, 8, 10]), (tokens[12:], [0, 2, 5])
    params, packed = init(config, 0), row_of(*documents)
    (_, sums), gradient = step(params, packed)
    ((_, one), slope), ((_, other), second) = (
        step(params, row_of(document)) for document in documents
    )
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, b + c, rtol=1e-4, atol=1e-5), sums, one, other
    )
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, b + c, atol=1e-4), gradient, slope, second
    )
    # Anchors with all slots in their document: 1, 3 and 8, then 2 and 5; of Falcon's four slots 3,
    # then 2.
    assert float(sums["accept_length"][1]) == (5 if kind == "parallelspec" else 2)
    optimizer = optax.adam(0.02)
    state, values = optimizer.init(params), []
    for _ in range(12):
        (_, sums), gradient = step(params, packed)
        values.append(float(sums["loss"][0] / sums["loss"][1]))
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
    assert values[-1] < 0.6 * values[0]
