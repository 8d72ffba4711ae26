"""Head-only updates from kept trunk outputs equal those that draft again."""

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import slow_except

from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.learning.learner import Learner, make_learner
from jaxspec.adapt.learning.segments import take_segments, write_segment
from jaxspec.adapt.updates import make_trainer
from jaxspec.adapt.work import Work
from pallas_kernels import registry

METHODS = ["specblock", "eagle3", "falcon", "parallelspec"]


def moved(weights, scale, seed):
    """Weights that were trained."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + scale * random.normal(size=x.shape).astype(x.dtype), weights)


@pytest.mark.parametrize("method", slow_except(["eagle3"], METHODS))
def test_slopes_are_those_of_drafting_again(method):
    """With a trunk that has moved since deployment, so that q0 reads outputs of its own."""
    params, start, ring = toys.gather(method)
    learner = make_learner(params.spec.drafter(method), params.spec.target, toys.ADAPT.learner)
    train, ids = learner.begin(moved(start, 0.02, 0)), np.arange(4)
    segments = take_segments(ring, ids, np.ones(4, bool))
    own, before = (
        learner.head.draft(weights, {}, params.target, ring, None, ids)
        for weights in (train.theta, start)
    )
    with registry.using("reference"):
        again = jax.jit(
            lambda: learner.find_slopes(train, "head", start, {}, params.target, segments, True)
        )()
    kept = jax.jit(
        lambda: learner.head.find_slopes(train, start, {}, segments, (own, before), True)
    )()
    np.testing.assert_allclose(kept.loss, again.loss, rtol=1e-5)
    assert float(again.terms["kl"]) > 1e-4
    for path, slope in again.leaves.items():
        largest = float(np.abs(slope).max())
        assert largest > 1e-4
        np.testing.assert_allclose(kept.leaves[path], slope, atol=1e-5 * largest, err_msg=path)


def make_trainers(method):
    """A trainer that keeps outputs and one that drafts again, both with plain gradient descent.

    AdamW's first steps go by the sign of a slope, so that rounding would change them.
    """
    params, _, ring = toys.gather(method)
    trainers = []
    for keeps in (True, False):
        trainer = make_trainer(params, method, toys.ADAPT.learner)
        config = params.spec.drafter(method), params.spec.target
        learner = trainer.learner = Learner(*config, toys.ADAPT.learner)
        learner.optimizers.update(dict.fromkeys(("head", "full"), optax.sgd(0.3)))
        trainer.train = learner.begin(trainer.start)
        learner.head = learner.head if keeps else None
        trainers.append(trainer)
    return trainers, ring


RULE = Decider(dict, lambda state, query: (state, Decision()), steps=2)


@pytest.mark.thorough
def test_updates_are_those_of_drafting_again():
    """Also once the trunk has moved, has come back, and an entry of the ring has been overwritten."""
    (kept, again), ring = make_trainers("eagle3")
    ids, given = np.arange(4), again.start

    def check(passes):
        before = kept.work
        found = [each.error(ring, ids) for each in (kept, again)]
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
        assert (kept.work - before).passes == passes

    check(1)
    for action, passes in (("head", 0), ("full", 1), ("head", 0)):
        before = kept.work
        for each in (kept, again):
            assert each.update(action, ring, ids, ids, RULE)[2] == 2
        # Outputs of the drafter before deployment are those of the first check.
        assert kept.work == before and kept.redrafts(action) == (action == "full")
        check(passes)
    for a, b in zip(*(jax.tree.leaves(each.train.theta) for each in (kept, again)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for each in (kept, again):
        each.restore(given)
    check(1)
    other = jax.tree.map(lambda leaf: leaf[1], ring).replace(number=np.int32(9))
    ring = write_segment(jax.tree.map(jnp.copy, ring), other, np.int32(3))
    check(1)


@pytest.mark.thorough
def test_a_refused_update_keeps_the_outputs_of_its_trunk():
    (kept, _), ring = make_trainers("eagle3")
    ids, gated = np.arange(4), RULE._replace(gated=True)
    told = kept.error(ring, ids)
    kept.learner.optimizers.update(full=optax.sgd(-3.0))  # unlearns
    good, flips, _ = kept.update("full", ring, ids, ids, gated)
    assert not good and flips.down >= flips.up
    before = kept.work
    assert kept.error(ring, ids) == told and kept.work == before + Work(reads=1)


def test_drafters_without_a_projection_of_their_own_draft_again():
    """JetSpec and Medusa borrow the target's; each of Medusa's own ones is another."""
    for method in ("jetspec", "medusa"):
        params, _, _ = toys.gather(method)
        trainer = make_trainer(params, method, toys.ADAPT.learner)
        assert trainer.learner.head is None and trainer.redrafts("head")
