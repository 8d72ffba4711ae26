"""What the loop asks of any policy, with policies made up for the purpose."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.drafters.base import Proposal
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.round.loop import run
from jaxspec.round.stop_rule import init_sources, record_sources, select_sources
from jaxspec.targets.attention import full_mask

GOLDEN = SHIPPED
PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]


@dataclasses.dataclass(frozen=True)
class Stops(PolicyConfig):
    """Sequence b drafts `controls[b]` steps after the root's; its state counts drafted steps and
    asks to see everything.
    """

    def functions(self):
        return _stops()


@functools.lru_cache
def _stops():
    def deeper(controls, state, seen):
        sums = (
            jnp.exp(seen.frontier).sum(1)
            + seen.entropy.sum(1)
            + seen.top.sum((1, 2))
            + seen.hidden.sum((1, 2))
        )
        return (seen.steps < controls) & jnp.isfinite(sums) & (seen.pool.logprob[:, 0] <= 0)

    def observe(controls, state, outcome):
        return state + outcome.steps

    needs = frozenset({"entropy", "top", "hidden"})
    return Functions(
        lambda shape: jnp.zeros(shape.batch, jnp.int32), Acts(deeper=deeper), observe, needs
    )


@dataclasses.dataclass(frozen=True)
class Blocks(PolicyConfig):
    """Blocks of `controls` slots, plus the prompt's last logits' largest index modulo 1, so that
    these are read.
    """

    def functions(self):
        return _blocks()


@functools.lru_cache
def _blocks():
    def block(controls, state, seen):
        return controls + jnp.argmax(seen.logits, -1) % 1

    return Functions(lambda shape: None, Acts(block=block), keep_state, frozenset({"logits"}))


@dataclasses.dataclass(frozen=True)
class Counts(PolicyConfig):
    """Counts rounds, in a state whose type JAX calls weak until it is added to."""

    def functions(self):
        return _counts()


@functools.lru_cache
def _counts():
    def observe(controls, state, outcome):
        return {"rounds": state["rounds"] + jnp.float32(1)}

    return Functions(
        lambda shape: {"rounds": jnp.full((), 0.0)}, Acts(rows=lambda *_: jnp.int32(4)), observe
    )


@pytest.fixture(scope="module")
def dflash():
    drafter = {"dflash": GOLDEN / "dflash" / "drafter"}
    return shorten(jaxspec.load(GOLDEN / "dflash" / "target", drafter=drafter, dtype="float32"))


@pytest.mark.slow
def test_sequences_stop_drafting_on_their_own(eagle):
    options = dict(
        drafter="eagle3", builder="dynamic/w3", max_new_tokens=20, budget=24, depth=4, trace=True
    )
    policy = Policy(Stops(), jnp.array([0, 2]))
    outs = jaxspec.decode(eagle, PROMPTS, **group_options(policy=policy, **options))
    plain = jaxspec.decode(eagle, PROMPTS, drafter="ar", max_new_tokens=20)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert {int(one.tree.depth.max()) for one in outs[0].rounds} == {1}
    assert {int(one.tree.depth.max()) for one in outs[1].rounds[: len(outs[1].rounds) // 2]} == {3}
    # A tree that stopped is the whole one of less depth: the first round of each prompt.
    for out, prompt, depth in zip(outs, PROMPTS, (1, 3), strict=True):
        whole = jaxspec.decode(
            eagle, prompt, **group_options(**options | {"depth": depth, "max_new_tokens": 2})
        )
        for name in ("token", "parent", "depth"):
            np.testing.assert_array_equal(
                getattr(out.rounds[0].tree, name), getattr(whole.rounds[0].tree, name)
            )
    assert int(outs[0].policy.state[0]) > 0
    assert set(outs[0].per_round.steps) <= {0, 2} and outs[0].per_round.tokens.sum() == 19
    assert [one.tree.token.size for one in outs[1].rounds] == outs[1].per_round.rows.tolist()
    with pytest.raises(ValueError, match=r"reset it with policy.replace\(state=None\)"):
        jaxspec.decode(eagle, PROMPTS[0], **group_options(policy=outs[0].policy, **options))


@pytest.mark.thorough
def test_a_state_goes_on_whatever_wrote_it(dflash):
    """States begin as Python numbers, come back from the rounds, or from a file: one compilation,
    and other sizes are told.
    """
    options = dict(drafter="dflash", budget=4, max_new_tokens=8)
    policy = Policy(Counts((4,)), ())
    first = jaxspec.decode(dflash, PROMPTS[0], **group_options(policy=policy, **options))
    compiled = run._cache_size()
    again = jaxspec.decode(dflash, PROMPTS[0], **group_options(policy=first.policy, **options))
    rounds = first.stats.rounds + again.stats.rounds
    assert float(again.policy.state["rounds"]) == rounds
    saved = first.policy.replace(state=jax.tree.map(np.asarray, first.policy.state))
    assert (
        float(
            jaxspec.decode(
                dflash, PROMPTS[0], **group_options(policy=saved, **options)
            ).policy.state["rounds"]
        )
        == rounds
    )
    assert run._cache_size() == compiled
    # What was learned at one temperature neither serves at another nor is lost there.
    warm = prepare(
        dflash, PROMPTS[0], **group_options(policy=again.policy, **options), temperature=1.0
    ).policy
    assert float(warm.state["rounds"]) == 0
    back = prepare(
        dflash,
        PROMPTS[0],
        **group_options(policy=warm.replace(state={"rounds": jnp.float32(3)}), **options),
    ).policy
    assert (
        float(back.state["rounds"]) == rounds
        and float(back.at_temperature(1.0).state["rounds"]) == 3
    )
    with pytest.raises(ValueError, match=r"reset it with policy.replace\(state=None\)"):
        jaxspec.decode(
            dflash,
            PROMPTS[0],
            **group_options(policy=policy.replace(state={"rounds": np.zeros(2)}), **options),
        )


@pytest.mark.slow
def test_a_chosen_block_is_the_compiled_one(dflash):
    options = dict(drafter="dflash", builder="chain", budget=16, max_new_tokens=24, trace=True)
    outs = jaxspec.decode(
        dflash, PROMPTS, **group_options(policy=Policy(Blocks(), jnp.array([4, 7])), **options)
    )
    for out, prompt, size in zip(outs, PROMPTS, (4, 7), strict=True):
        fixed = jaxspec.decode(
            dflash, prompt, **group_options(**options | {"block_size": size, "budget": size})
        )
        assert out.tokens == fixed.tokens
        assert [one.tree.token.tolist() for one in out.rounds] == [
            one.tree.token.tolist() for one in fixed.rounds
        ]


def test_masks_of_a_part_of_a_block():
    words = np.asarray(full_mask(3, 40, jnp.array([5, 32, 40])))
    assert words.shape == (3, 40, 2)
    assert words[:, 0].tolist() == [[0b11111, 0], [0xFFFFFFFF, 0], [0xFFFFFFFF, 0xFF]]
    assert (np.asarray(full_mask(1, 40)) == 0xFFFFFFFF).all()


def test_what_a_node_is_a_candidate_of():
    logits = jax.random.normal(jax.random.key(0), (1, 2, 1, 12)).at[0, 1, 0, 3].set(-jnp.inf)
    proposal = Proposal(logits, hidden=jnp.arange(6.0).reshape(1, 2, 1, 3))
    sources = record_sources(
        init_sources(proposal, 5, frozenset({"entropy", "top", "hidden"})), proposal, 3, 1.0
    )
    seen = select_sources(sources, jnp.array([[4, 3, 4]]))
    p = np.asarray(jax.nn.softmax(logits[0, :, 0]))
    entropy = -np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-30)), 0), -1)
    np.testing.assert_allclose(seen["entropy"], entropy[None, [1, 0, 1]], rtol=1e-5)
    np.testing.assert_allclose(seen["top"], -np.sort(-p)[None, [1, 0, 1], :10], rtol=1e-5)
    assert seen["hidden"][0, :, 0].tolist() == [3.0, 0.0, 3.0]
    assert (
        select_sources(init_sources(proposal, 5, frozenset()), jnp.zeros((1, 1), jnp.int32)) == {}
    )
    with pytest.raises(ValueError, match="hidden states, and this drafter gives none"):
        init_sources(Proposal(logits), 5, frozenset({"hidden"}))


def test_decisions_that_a_drafter_cannot_follow_are_refused(dflash, eagle):
    with pytest.raises(ValueError, match="'dflash' drafts in one step"):
        jaxspec.decode(
            dflash,
            [1, 2],
            speculation=jaxspec.Speculation(policy=Policy(Stops(), jnp.array([1]))),
            drafter="dflash",
        )
    with pytest.raises(ValueError, match="'eagle3' drafts no blocks"):
        jaxspec.decode(
            eagle,
            [1, 2],
            speculation=jaxspec.Speculation(policy=Policy(Blocks(), jnp.array([4]))),
            drafter="eagle3",
        )
