"""Falcon's bundle: what it keeps between rounds, chains as in training, and nodes anywhere in a
block.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys
import pytest

from jaxspec.builders import static
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import Nodes
from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from jaxspec.drafters.falcon.network import Falcon, FalconConfig
from training.drafters.falcon import init_falcon
from training.drafters.falcon.loss import make_chains

SLOTS, NODES, PAIRS = 3, 2, 8
CONFIG = FalconConfig(**toys.SIZES, **toys.OF_TARGET, slots=SLOTS, blocks=3, lstm_size=6)
ROWS = SLOTS + 2 * NODES * SLOTS


class Bundle:
    """The bundle with its functions compiled once."""

    def __init__(self):
        self.drafter = make_falcon_drafter(CONFIG)
        self.variables = variables = toys.variables_of(init_falcon, CONFIG)
        root = jnp.asarray(toys.TOKENS[:, PAIRS])
        self.start = jax.jit(
            lambda state: self.drafter.start(variables, state, toys.TARGET, root, ROWS)
        )
        self.expand = jax.jit(
            lambda state, scratch, nodes, first: self.drafter.expand(
                variables, state, scratch, toys.TARGET, nodes, first
            )
        )


@pytest.fixture(scope="module")
def bundle():
    return Bundle()


@pytest.fixture(scope="module")
def state(bundle):
    return toys.absorb(bundle.drafter, bundle.variables, [PAIRS])


def nodes_of(token, source, depth):
    """The same nodes in both sequences."""
    source, depth = (jnp.asarray([x, x], jnp.int32) for x in (source, depth))
    return Nodes(jnp.asarray(token, jnp.int32), source, depth, source, jnp.ones(source.shape, bool))


def test_rounds_and_garbage_rows_change_nothing(bundle, state):
    one, _ = bundle.start(state)
    other, _ = bundle.start(toys.absorb(bundle.drafter, bundle.variables, [3, 0, 2, 3]))
    assert one.logits.shape == (2, 1, SLOTS, toys.VOCAB)
    np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)


@pytest.mark.thorough
def test_a_chain_is_the_training_forward_at_its_anchor(bundle, state):
    """Three forwards along the text's own tokens; beside the node of the chain stands another,
    which must not matter.
    """
    positions = np.broadcast_to(np.arange(toys.LENGTH, dtype=np.int32), (2, toys.LENGTH))
    batch = {"tokens": toys.TOKENS, "positions": positions, "anchors": np.array([[3, PAIRS]] * 2)}
    variables = bundle.variables
    hidden_of = make_chains(CONFIG, variables, toys.EMBEDDING, batch, toys.FEATURES)
    hidden = jax.jit(lambda: hidden_of(jnp.zeros((2, 2, SLOTS), bool), 3))()
    wanted = (hidden[:, 1] @ variables["params"]["lm_head"]).reshape(2, 3, SLOTS, toys.VOCAB)
    proposal, scratch = bundle.start(state)
    found, row, lane = [proposal.logits[:, 0]], 0, 0
    for step in range(2):
        last = PAIRS + SLOTS * (step + 1)
        text = jnp.asarray(toys.TOKENS[:, last - SLOTS + 1 : last + 1])
        # What the drafter would take to be most probable is the text here.
        scratch = scratch.replace(best=jax.lax.dynamic_update_slice(scratch.best, text, (0, row)))
        sources, lane = [row + SLOTS - 1] * NODES, 1 - lane
        token = jnp.where(jnp.arange(NODES) == lane, text[:, -1:], 5)
        nodes = nodes_of(token, sources, [SLOTS * (step + 1)] * NODES)
        first = SLOTS + step * NODES * SLOTS
        proposal, scratch = bundle.expand(state, scratch, nodes, jnp.int32(first))
        found, row = [*found, proposal.logits[:, lane]], first + lane * SLOTS
    np.testing.assert_allclose(np.stack(found, axis=1), wanted, atol=1e-5)


def test_a_node_within_its_block(bundle, state):
    """At slot 0: of its window's pairs two are the text's last, and one is its own with the output
    of the block's first row.
    """
    model, weights = Falcon(CONFIG), bundle.variables
    _, scratch = bundle.start(state)
    proposal, _ = bundle.expand(
        state, scratch, nodes_of([[7, 7]] * 2, [0, 0], [1, 1]), jnp.int32(SLOTS)
    )

    @jax.jit
    def alone():
        fused = model.apply(weights, toys.FEATURES[:, :PAIRS], method="fuse")
        tokens = jnp.take(toys.EMBEDDING, jnp.asarray(toys.TOKENS[:, 1 : PAIRS + 1]), axis=0)
        none, index = jnp.zeros((2, 4 * CONFIG.lstm_size)), jnp.arange(PAIRS + 1)
        positions = jnp.broadcast_to(index, (2, PAIRS + 1))

        def run(tokens, features, relaxed):
            """All pairs in one pass; the last three see each other, the others what comes before
            them.
            """
            count = tokens.shape[1]
            x, _ = model.apply(weights, tokens, features, none, method="read")
            rows = index[:count]
            seen = (rows[:, None] >= rows) | ((rows[:, None] >= relaxed) & (rows >= relaxed))
            words = (seen.astype(jnp.uint32) << rows.astype(jnp.uint32)).sum(-1, dtype=jnp.uint32)
            mask = jnp.broadcast_to(words[:, None], (2, count, 1))
            return model.apply(weights, x, positions[:, :count], mask, None)[0]

        first = run(tokens, fused, PAIRS - SLOTS)[:, -SLOTS]
        own = jnp.broadcast_to(toys.EMBEDDING[7], (2, 1, toys.EMBEDDING.shape[1]))
        tokens, features = (
            jnp.concatenate([tokens, own], 1),
            jnp.concatenate([fused, first[:, None]], 1),
        )
        return model.apply(
            weights, run(tokens, features, PAIRS + 1 - SLOTS)[:, -SLOTS:], method="logits"
        )

    np.testing.assert_allclose(proposal.logits[:, 0], alone(), atol=1e-5)
    np.testing.assert_allclose(proposal.logits[:, 1], proposal.logits[:, 0], atol=1e-5)


def test_sizes_and_bundles():
    with pytest.raises(ValueError, match="num_layers is 2: a Falcon drafter has one layer"):
        make_falcon_drafter(dataclasses.replace(CONFIG, num_layers=2))
    with pytest.raises(ValueError, match="lstm_size is 0, lstm_layers 2: give at least 1 of each"):
        make_falcon_drafter(dataclasses.replace(CONFIG, lstm_size=0))


@pytest.fixture(scope="module")
def params():
    target = TargetConfig(**toys.SIZES | {"num_layers": 3}, vocab_size=toys.VOCAB)
    config = dataclasses.replace(CONFIG, slots=2, draft_vocab_size=30)
    return toys.bundle_of(
        "falcon",
        config,
        toys.variables_of(init_falcon, config) | {"draft": {"ids": jnp.arange(2, 32)}},
        target,
    )


@pytest.mark.slow
def test_text_is_the_targets(params):
    accepted = toys.check_text(params, "falcon", builder=static(toys.PATHS))
    assert accepted[2:].sum() > accepted[1] and accepted[3:].any()
    toys.check_text(params, "falcon", builder="static", budget=13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [dict(), dict(builder="best_first", budget=6), dict(builder="chain", depth=5)]
)
def test_text_is_the_targets_with_every_builder(params, options):
    toys.check_text(params, "falcon", **options)
    toys.check_text(params, "falcon", temperature=1.0, **options)
