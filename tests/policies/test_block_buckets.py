"""Rounds draft the smallest compiled block that holds what the policy chose, and no more."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.call.options import Speculation, group_options
from jaxspec.call.output import PerRound
from jaxspec.call.resolve import resolve_config
from jaxspec.policies.compose import compose
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.rules.replayed import make_replay
from jaxspec.policies.rules.static import make_static
from jaxspec.round import plan as plan_module
from jaxspec.round.plan import make_plan

PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
BUILDERS = ("chain", "best_first", "expand/fanout=top2gap", "beam", "static", "dynamic")


@dataclasses.dataclass(frozen=True)
class Given(PolicyConfig):
    """Sequence b has blocks of `controls[b]` slots; drafting is compiled for `sizes`."""

    sizes: tuple[int, ...] = ()

    def functions(self):
        return _given(self.sizes)


@functools.lru_cache
def _given(sizes):
    def block(controls, state, seen):
        return jnp.broadcast_to(controls, seen.live.shape)

    return Functions(lambda shape: None, Acts(block=block), keep_state, blocks=sizes)


def given(blocks, sizes=()):
    return Policy(Given(sizes=sizes), jnp.asarray(blocks))


@pytest.fixture(scope="module")
def loaded():
    """Golden models of a drafter whose slots see the whole block, and of one with causal slots."""
    found = {}
    for name in ("dflash", "jetspec"):
        folder = SHIPPED / name
        found[name] = jaxspec.load(
            folder / "target", drafter={name: folder / "drafter"}, dtype="float32"
        )
    return found


@pytest.fixture
def drafted(monkeypatch):
    """The sizes of the blocks that are drafted while the test runs, one per round."""
    sizes, make = [], plan_module.make_drafter

    def make_recording(config):
        drafter = make(config)

        def start(*args, **kwargs):
            jax.debug.callback(lambda: sizes.append(config.block_size))
            return drafter.start(*args, **kwargs)

        return drafter._replace(start=start)

    # Only tests with this fixture use these configs, so no compiled program is left over from
    # others.
    monkeypatch.setattr(plan_module, "make_drafter", make_recording)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", pytest.param("jetspec", marks=pytest.mark.slow)])
def test_what_is_drafted_follows_the_choice(loaded, drafted, method):
    params, sizes = loaded[method], (3, 5, 8)
    options = dict(drafter=method, builder="chain", budget=8, max_new_tokens=12)
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=12)
    for chosen, paid in ((3, {3}), (4, {5}), (8, {8}), (20, {8})):
        drafted.clear()
        out = jaxspec.decode(
            params, PROMPTS[0], **group_options(policy=given([chosen], sizes), **options)
        )
        jax.effects_barrier()
        assert set(drafted) == paid and len(drafted) == out.stats.rounds
        assert out.tokens == plain[0].tokens and out.per_round.block == min(chosen, 8)
    # A batch drafts the largest block of the sequences that are not finished.
    drafted.clear()
    outs = jaxspec.decode(
        params,
        PROMPTS,
        **group_options(policy=given([3, 8], sizes), **options),
        stop=[plain[1].tokens[1]],
    )
    jax.effects_barrier()
    assert outs[1].stats.rounds < outs[0].stats.rounds
    assert drafted == sorted(drafted, reverse=True) and set(drafted) == {3, 8}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(name, marks=() if name == "expand/fanout=top2gap" else pytest.mark.slow)
        for name in BUILDERS
    ],
)
def test_trees_are_those_of_a_masked_block(loaded, builder, temperature):
    """A block that is compiled at its size proposes what the largest one does, masked to it."""
    options = dict(drafter="dflash", builder=builder, budget=8, max_new_tokens=10)
    options |= dict(temperature=temperature, trace=True)
    sizes = (2, 4, 5, 7)
    decode = functools.partial(
        jaxspec.decode, loaded["dflash"], PROMPTS, **group_options(**options)
    )
    for chosen in ([2, 4], [5, 3]):
        fitted, masked = (
            decode(speculation=jaxspec.Speculation(policy=given(chosen, own)))
            for own in (sizes, sizes[-1:])
        )
        for one, other in zip(fitted, masked, strict=True):
            assert one.stats.accept_hist == other.stats.accept_hist
            for a, b in zip(one.rounds, other.rounds, strict=True):
                np.testing.assert_array_equal(a.tree.token, b.tree.token)
                np.testing.assert_array_equal(a.tree.parent, b.tree.parent)
                np.testing.assert_allclose(a.tree.logprob, b.tree.logprob, atol=1e-5)


def test_the_sizes_that_are_compiled(loaded):
    def sizes(policy, budget):
        speculation = Speculation(builder="chain", budget=budget, policy=policy)
        config, _ = resolve_config(spec, drafter="jetspec", speculation=speculation)
        return tuple(make_plan(spec, config).blocks)

    spec = loaded["jetspec"].spec
    assert spec.drafter("jetspec").block_size == 8
    assert sizes(given(4), 8) == (2, 4, 8) and sizes(given(4), 7) == (2, 4, 7)
    # No tree of five rows is deeper than a block of five.
    assert sizes(given(4, (2, 4, 8)), 5) == (2, 4, 5)
    assert sizes(given(4, (3, 4)), 8) == (3, 4)
    assert sizes(None, 8) == ()


def test_wrapping_a_policy_keeps_its_sizes():
    layer = {"kernel": np.ones((4, 2), np.float32), "bias": np.ones(2, np.float32)}
    pilot = make_blockpilot((3, 5), Predictor([layer]))
    rows, seen = make_static(rows=7), PerRound(*[np.ones(2, int)] * 4, block=3)
    for policy in (pilot, compose(rows, pilot), make_replay(pilot, seen, 4)):
        assert policy.config.functions().blocks == (3, 5)
    assert rows.config.functions().blocks == ()
