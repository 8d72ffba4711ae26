"""Committed rounds are drafted again as the loop drafts them, and as drafters were trained."""

import adapt_toys
import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys
import pytest
from slow_cases import slow_except

from jaxspec.adapt.learning import redraft as redrafting
from jaxspec.adapt.learning.objective import judge
from jaxspec.adapt.learning.redraft import redraft
from jaxspec.adapt.learning.segments import Segments, take_segments
from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.registry import make_drafter
from pallas_kernels import registry
from training.drafters.falcon import init_falcon
from training.drafters.falcon.loss import make_chains

SLOTS, BLOCKS, ROOTS = 3, 2, (3, 8)
CONFIG = FalconConfig(
    **toys.SIZES, **toys.OF_TARGET, slots=SLOTS, blocks=BLOCKS, lstm_size=6, lstm_layers=1
)
ROWS = toys.LENGTH - 1


def cut_text(begin, count, depths, width=3 * toys.WIDTH):
    """Two segments of the text whose rounds begin at rows and commit tokens, [2, Q] each."""
    begin, count = np.asarray(begin, np.int32), np.asarray(count, np.int32)
    none, row = jnp.zeros((*begin.shape, depths)), jnp.zeros((2, ROWS, 1))
    return Segments(
        token=jnp.asarray(toys.TOKENS),
        features=jnp.asarray(toys.FEATURES[:, :ROWS, :width]),
        logprob=row,
        ids=row.astype(jnp.int32),
        tail=row[..., 0],
        begin=jnp.asarray(begin),
        count=jnp.asarray(count),
        reject=none,
        weight=none,
        held=none,
        number=jnp.zeros(2, jnp.int32),
    )


@pytest.mark.slow
def test_falcon_rounds_are_those_of_training():
    """Blocks after each root, along the text's own tokens."""
    variables, drafter = toys.variables_of(init_falcon, CONFIG), make_falcon_drafter(CONFIG)
    depths = SLOTS * BLOCKS - 1  # the last block is cut
    positions = np.broadcast_to(np.arange(toys.LENGTH, dtype=np.int32), (2, toys.LENGTH))
    batch = {"tokens": toys.TOKENS, "positions": positions, "anchors": np.array([ROOTS] * 2)}
    hidden_of = make_chains(CONFIG, variables, toys.EMBEDDING, batch, toys.FEATURES)
    hidden = jax.jit(lambda: hidden_of(jnp.zeros((2, 2, SLOTS), bool), BLOCKS))()
    wanted = (hidden @ variables["params"]["lm_head"]).reshape(2, 2, SLOTS * BLOCKS, toys.VOCAB)

    segments = cut_text([[*ROOTS, 0]] * 2, [[ROOTS[1] - ROOTS[0], 4, 0]] * 2, depths)
    read = jnp.broadcast_to(jnp.array([1, 1, 0])[:, None], (2, 3, depths))

    @jax.jit
    def draft():
        return redraft(
            drafter, (variables,), toys.TARGET, segments, read, lambda *fold: fold[2][0][:2]
        )

    found = draft()[0]
    assert found.shape == (3, 2, depths, toys.VOCAB)
    np.testing.assert_allclose(found[:2].swapaxes(0, 1), wanted[:, :, :-1], atol=1e-5)


TARGET = TargetHead(toys.TARGET.embed, lambda hidden: hidden @ toys.EMBEDDING.T)
# Rounds as they follow each other; the second segment has three.
BEGIN, COUNT = [[3, 5, 6, 9, 12], [2, 8, 9, 0, 0]], [[2, 1, 3, 3, 4], [6, 1, 5, 0, 0]]


def draft_in_turn(drafter, segments, depths):
    """One round after the other, as the decode loop does: propose after the root, follow the text,
    absorb what was committed.

    Returns:
      A function of the variables: logits [Q, S, D, V], and class logits or None.
    """
    token, steps = segments.token, -(-depths // drafter.slots) - 1

    def read(at):
        return jnp.take_along_axis(token, jnp.minimum(at, ROWS), axis=1)

    @jax.jit
    def absorb(variables, state, first, count):
        at = jnp.minimum(first[:, None] + jnp.arange(8), ROWS - 1)
        features = jnp.take_along_axis(segments.features, at[..., None], axis=1)
        rows = Committed(read(at), read(at + 1), features, first, count)
        return drafter.absorb(variables, state, TARGET, rows)

    @jax.jit
    def propose(variables, state, root):
        root, slots = root[:, None], drafter.slots
        rows = slots * (1 + steps)
        proposal, scratch = drafter.start(variables, state, TARGET, read(root)[:, 0], rows)
        said, one = [proposal], jnp.ones_like(root)
        for step in range(1, 1 + steps):
            depth = step * slots
            between = read(root + depth - slots + jnp.arange(1, slots))[:, None]
            at = depth * one
            before = between if slots > 1 else None
            nodes = Nodes(read(root + depth), at - 1, at, one * (step - 1), one > 0, before)
            proposal, scratch = drafter.expand(
                variables, state, scratch, TARGET, nodes, jnp.int32(depth)
            )
            said.append(proposal)
        logits = jnp.concatenate([one.logits[:, 0] for one in said], axis=1)[:, :depths]
        if not drafter.rank_classes:
            return logits, None
        classes = jnp.concatenate([one.class_logits[:, 0] for one in said], axis=1)
        return logits, classes[:, :depths]

    def draft(variables):
        state = drafter.init(2, 2 * ROWS, jnp.float32)
        state = absorb(variables, state, jnp.zeros(2, jnp.int32), segments.begin[:, 0])
        said = []
        for begin, count in zip(segments.begin.T, segments.count.T, strict=True):
            said.append(propose(variables, state, begin))
            state = absorb(variables, state, begin, count)
        return jax.tree.map(lambda *each: jnp.stack(each), *said)

    return draft


# SpecBlock has all that EAGLE-3 has, and classes of ranks.
METHODS = ["jetspec", "medusa", "eagle3", "specblock", "falcon", "griffin"]


@pytest.mark.parametrize("method", slow_except(["medusa"], METHODS))
def test_rounds_side_by_side_are_those_in_turn(method, monkeypatch):
    """Values and gradients, in three chunks of which one takes one step and one is left out."""
    monkeypatch.setattr(redrafting, "SIDE", 2)
    params = adapt_toys.make_params(method)
    config, variables = params.spec.drafter(method), params.drafter(method)
    drafter, depths = make_drafter(config), 6 if method == "specblock" else 4
    segments = cut_text(BEGIN, COUNT, depths, toys.WIDTH * len(config.feature_layers))
    read = np.arange(depths) < np.array(COUNT)[..., None]
    read[0, [0, 4]] = read[1, 1] = False
    read[:, :, 1:] &= np.array([[0, 0, 1, 0, 0], [1, 0, 0, 0, 0]], bool)[..., None]
    asked = jnp.asarray(read.swapaxes(0, 1)[..., None])

    def side_by_side(variables):
        given = drafter, (variables,), TARGET, segments, jnp.asarray(read)
        return redraft(*given, lambda q, depth, said: tuple(said[0][:2]))

    def differentiate(draft):
        """The results where they are asked for, and the gradient of a random sum of them."""

        def weigh(variables):
            said = jax.tree.map(lambda leaf: jnp.where(asked, leaf, 0), draft(variables))
            factors = [np.random.default_rng(3).normal(size=x.shape) for x in jax.tree.leaves(said)]
            pairs = zip(jax.tree.leaves(said), factors, strict=True)
            return sum((leaf * factor).sum() for leaf, factor in pairs), said

        slopes, said = jax.grad(weigh, has_aux=True)(variables)
        return said, slopes

    with registry.using("reference"):
        found = jax.jit(lambda: differentiate(side_by_side))()
        wanted = differentiate(draft_in_turn(drafter, segments, depths))
    assert sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(wanted[1])) > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), found, wanted)


@pytest.mark.thorough
def test_classes_are_weighed_per_round_and_depth():
    """Twelve times the same segment: every class has 12 slots, more than the 10 that count in full."""
    method = "specblock"
    params, weights, ring = adapt_toys.gather(method)
    drafter = make_drafter(params.spec.drafter(method))

    @jax.jit
    def find(ids):
        segments = take_segments(ring, ids, ids == 0)
        given = drafter, {"params": weights}, TARGET, segments, segments.weight
        return jnp.where(segments.weight.swapaxes(0, 1) > 0, judge(*given).rank, 0)

    with registry.using("reference"):
        one, many = (find(jnp.zeros(count, jnp.int32)) for count in (1, 12))
    assert one.any()
    np.testing.assert_allclose(many[:, 3], one[:, 0] * 10 / 12, rtol=1e-5)
