"""What updates change, and that they learn; the target's tensors are never among it."""

import dataclasses

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.adapt.actions import check_unshared, merge_leaves, select_leaves
from jaxspec.adapt.learning.learner import make_learner
from jaxspec.adapt.learning.objective import average_loss, compare, diverge, find_aims, judge
from jaxspec.adapt.learning.segments import Segments, take_segments
from jaxspec.adapt.publish import copy_weights, hash_weights, publish, sum_bits
from jaxspec.core.runtime.compilations import compilations


def make_toy_learner(params, method, **options):
    options = dataclasses.replace(toys.ADAPT.learner, **options)
    return make_learner(params.spec.drafter(method), params.spec.target, options)


def train(method, action, steps, **options):
    params, weights, ring = toys.gather(method)
    learner = make_toy_learner(params, method, **options)
    state, losses = learner.begin(weights), []
    for _ in range(steps):
        state, terms = learner.step(
            state, action, weights, {}, params.target, ring, np.arange(ring.token.shape[0])
        )
        losses.append({name: float(value) for name, value in terms.items()})
    return state.theta, losses


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["layers_0", "layers_1", "norm", "fc"], {"layers_1", "norm"}),
        (["layers_0", "lm_head", "norm", "rank_inner", "rank_outer"], {"lm_head", "rank_inner", "rank_outer"}),
        (["attention", "mlp", "mlp_norm", "norm", "fc"], {"attention", "mlp", "mlp_norm", "norm"}),
        (["block_0", "block_9", "block_10"], {"block_10"}),
    ],
)  # fmt: skip
def test_heads(names, head):
    params = {name: {"kernel": jnp.zeros(2)} for name in names}
    assert {path[0] for path in select_leaves(params, "head")} == head
    assert {path[0] for path in select_leaves(params, "full")} == set(names)


def test_an_embedding_is_not_trained():
    params = {"embedding": jnp.zeros(3), "layers_0": {"kernel": jnp.zeros(2)}}
    assert set(select_leaves(params, "full")) == {("layers_0", "kernel")}
    with pytest.raises(ValueError, match="no weights to adapt"):
        select_leaves({"embedding": jnp.zeros(3)}, "full")
    with pytest.raises(ValueError, match="action is 'all': choose one of head, full"):
        select_leaves(params, "all")


def test_shared_tensors_are_refused():
    shared = jnp.ones(3)
    with pytest.raises(ValueError, match="is a tensor of the target: copy it first"):
        check_unshared({"norm": shared}, {"params": {"norm": shared}})


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("medusa", "head"),
        ("medusa", "full"),
        pytest.param("jetspec", "head", marks=pytest.mark.slow),
        pytest.param("jetspec", "full", marks=pytest.mark.slow),
        pytest.param("falcon", "full", marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_updates_learn_and_leave_the_rest(method, action):
    params, weights, _ = toys.gather(method)
    target = hash_weights(params.target)
    theta, losses = train(method, action, 30)
    assert losses[-1]["ce"] < losses[0]["ce"] - 0.1
    assert hash_weights(params.target) == target
    chosen = select_leaves(weights, action)
    rest = {path: 0 for path in select_leaves(weights, "full") if path not in chosen}
    changed = select_leaves(theta, "full")
    before = select_leaves(weights, "full")
    assert all((np.asarray(changed[path]) == np.asarray(before[path])).all() for path in rest)
    assert any((np.asarray(changed[path]) != np.asarray(before[path])).any() for path in chosen)


@pytest.mark.thorough
def test_the_anchor_holds_weights_in_place():
    _, weights, _ = toys.gather("medusa")
    free, losses = train("medusa", "full", 20)
    held, anchored = train("medusa", "full", 20, anchor=1e6)

    def moved(theta):
        pairs = zip(jax.tree.leaves(theta), jax.tree.leaves(weights), strict=True)
        return max(float(jnp.abs(a - b).max()) for a, b in pairs)

    assert anchored[-1]["kl"] < losses[-1]["ce"] * 1e-2
    assert moved(held) < 0.5 * moved(free)


def make_loss(method, term=None):
    """The loss, or one of its terms, of leaves that replace a toy drafter's."""
    params, weights, ring = toys.gather(method)
    learner = make_toy_learner(params, method)
    segments = take_segments(ring, np.arange(4), np.ones(4, bool))
    start = {"params": weights} if term is None else None

    @jax.jit
    def loss(leaves):
        variables, head = {"params": merge_leaves(weights, leaves)}, learner._head(params.target)
        found = judge(learner.drafter, variables, head, segments, segments.weight, start)
        whole, terms = average_loss(found, segments, 0.5)
        return whole if term is None else terms[term]

    return loss


@pytest.mark.thorough
def test_gradients_are_those_of_differences():
    """The gradient of the loss, against finite differences along a random direction."""
    _, weights, _ = toys.gather("jetspec")
    leaves, random = select_leaves(weights, "full"), np.random.default_rng(3)
    way = {path: random.normal(size=leaf.shape).astype(np.float32) for path, leaf in leaves.items()}
    loss = make_loss("jetspec")

    def moved(step):
        return {path: leaf + step * way[path] for path, leaf in leaves.items()}

    step = 1e-2
    wanted = (loss(moved(step)) - loss(moved(-step))) / (2 * step)
    slopes = jax.grad(loss)(leaves)
    found = sum(float((slopes[path] * way[path]).sum()) for path in leaves)
    np.testing.assert_allclose(found, wanted, rtol=5e-2)


def test_publication_reuses_buffers_and_compiles_once():
    weights = {"a": jnp.ones((64, 64), jnp.bfloat16), "b": jnp.ones(8)}
    theta = {"a": jnp.full((64, 64), 1.5), "b": jnp.full(8, 2.5)}
    more = jax.tree.map(lambda leaf: leaf + 1, theta)
    serving = copy_weights(weights)
    where = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(serving)}
    old = jax.tree.leaves(serving)
    serving, counted = publish(serving, theta), compilations()
    serving = publish(serving, more)
    assert compilations() == counted
    assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(serving)} == where
    assert all(leaf.is_deleted() for leaf in old)
    assert serving["a"].dtype == jnp.bfloat16 and float(serving["a"][0, 0]) == 2.5
    assert float(weights["b"][0]) == 1


def test_terms_are_those_of_their_formulas():
    """Cross-entropy over kept tokens and tail, divergence and rank class, in NumPy."""
    random = np.random.default_rng(4)
    vocab, kept, outside = 30, 5, [3, 17]
    q, q0 = (random.normal(size=(1, 2, vocab)).astype(np.float32) for _ in range(2))
    for logits in (q, q0):
        logits[..., outside] = -np.inf  # a reduced draft vocabulary
    p = np.exp(random.normal(size=(4, vocab)))
    p /= p.sum(-1, keepdims=True)
    ids = np.argsort(-p, axis=-1)[:, :kept]
    top = np.take_along_axis(p, ids, axis=-1)
    none = jnp.zeros((1, 1, 2))
    one = Segments(
        token=jnp.array([[0, 0, 7, 17, 0]]),
        features=jnp.zeros((1, 4, 1)),
        logprob=jnp.log(top)[None],
        ids=jnp.asarray(ids)[None],
        tail=jnp.asarray(1 - top.sum(-1))[None],
        begin=jnp.array([[1]]),
        count=jnp.array([[2]]),
        reject=none,
        weight=none + 1,
        held=none,
        number=jnp.zeros(1, jnp.int32),
    )
    aims = find_aims(one, jnp.zeros(1, jnp.int32), 0, 2)
    found, _ = compare(aims, jnp.asarray(q), None)
    # The same from logits of the draft vocabulary alone.
    drafted = np.delete(np.arange(vocab), outside).astype(np.int32)
    classes = jnp.asarray(random.normal(size=(1, 2, 4)), jnp.float32)
    whole = compare(aims, jnp.asarray(q), classes)
    reduced = compare(aims, jnp.asarray(q[..., drafted]), classes, jnp.asarray(drafted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, reduced)
    said = np.exp(q) / np.exp(q).sum(-1, keepdims=True)
    for d in range(2):
        row, ours = 1 + d, said[0, d]
        inside = [i for i in range(kept) if ids[row, i] not in outside]
        wanted = -sum(top[row, i] * np.log(ours[ids[row, i]]) for i in inside)
        rest = 1 - sum(ours[ids[row, i]] for i in inside)
        wanted -= (1 - top[row].sum()) * np.log(rest)
        np.testing.assert_allclose(found.ce[0, d], wanted, rtol=1e-4)
        # r is that of the committed token, and 0 if the drafter cannot propose it.
        assert ids[row, 0] not in (7, 17)
        np.testing.assert_allclose(found.chance[0, d], [ours[7], 0.0][d], rtol=1e-5)
        assert found.hit[0, d] == (ours.argmax() == ids[row, 0])
        assert found.known[0, d] == (ids[row, 0] not in outside)
        before = np.exp(q0[0, d]) / np.exp(q0[0, d]).sum()
        known = [v for v in range(vocab) if v not in outside]
        kl = sum(ours[v] * np.log(ours[v] / before[v]) for v in known)
        np.testing.assert_allclose(diverge(q, q0)[0, d], kl, rtol=1e-4)


@pytest.mark.thorough
def test_a_rank_head_learns():
    """A small step against its gradient lowers its loss by as much as the gradient says."""
    _, weights, _ = toys.gather("specblock")
    leaves = select_leaves(weights, "head")
    heads = {path: leaf for path, leaf in leaves.items() if path[0] != "lm_head"}
    assert len(heads) == 2
    loss = make_loss("specblock", "rank")
    before, slope = jax.value_and_grad(loss)(heads)
    steep = sum(float((leaf**2).sum()) for leaf in slope.values())
    after = loss({path: leaf - 1e-2 / steep**0.5 * slope[path] for path, leaf in heads.items()})
    np.testing.assert_allclose(before - after, 1e-2 * steep**0.5, rtol=0.1)


def test_digests_of_the_device_tell_weights_apart():
    weights = {"a": jnp.ones((3, 2), jnp.bfloat16), "b": jnp.arange(4, dtype=jnp.int8)}
    assert sum_bits(weights) == sum_bits(copy_weights(weights))
    for other in (
        weights | {"a": weights["a"].at[0, 0].multiply(-1)},
        weights | {"b": weights["b"].at[0].add(1)},
        weights | {"a": weights["a"].T},
        {"a": weights["a"], "c": weights["b"]},
    ):
        assert sum_bits(other) != sum_bits(weights)
