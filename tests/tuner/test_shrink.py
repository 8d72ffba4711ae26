"""A batch shrinks as its sequences finish; tokens, statistics and traces are those of the whole."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_toys import make_params
from short_models import load_short
from slow_cases import slow_except

import jaxspec
from jaxspec.call import run as running
from jaxspec.call import start
from jaxspec.call.options import group_options
from jaxspec.call.prefill import prefill
from jaxspec.call.run import run_session, run_to_end
from jaxspec.call.session import matmul_precision, prefill_arguments, prepare, run_prefill
from jaxspec.call.shrink import SHARED, find_axes
from jaxspec.call.start import find_key
from jaxspec.core.runtime.compilations import compilations
from jaxspec.costs.files import load_costs
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig
from jaxspec.tuner import shrink_choice
from jaxspec.tuner.shrink_choice import ShrinkPrices
from jaxspec.tuner.tuner import Tuner, process_tuner, tune
from training.drafters import records

PROMPTS = ["def add(a, b):\n    return", "The cat sat", "1 2 3 4 5 6", "A"]
LIMITS = [60, 3, 9, 30]
IDS = [[4, 9, 2, 14], [7], [1, 2, 3], [11, 11]]
SEEDED = dict(temperature=1.0, seed=3)
# All calls have the same sizes, so that they share programs.
TREE = dict(drafter="dflash", budget=4, max_new_tokens=64)
PLAIN = TREE | dict(drafter="ar")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(scope="module")
def tiny():
    """A random target and drafter, whose programs compile in a second."""
    return make_params("qwen3", ("dflash",))


@pytest.fixture
def sizes(monkeypatch):
    """The batch sizes that rounds ran with, in order."""
    found, run = [], running.run

    def note(params, request, state, rounds, *, config):
        found.append(state.done.shape[0])
        return run(params, request, state, rounds, config=config)

    monkeypatch.setattr(running, "run", note)
    return found


def finish_both(params, limits=LIMITS, trace=False, prompts=PROMPTS, **options):
    """Run a batch whose sequences have limits of their own, whole and shrinking."""
    session = prepare(params, prompts, **group_options(ignore_eos=True, **options))
    request = session.request.replace(limit=np.asarray(limits, np.int32))
    session = dataclasses.replace(session, request=request)
    with matmul_precision(session):
        return [run_to_end(session, run_prefill(session), trace, way) for way in (False, True)]


def assert_same(whole, part):
    """Compare what outputs are made of."""
    assert part.shrunk and not whole.shrunk and part.state.cache is None
    for name in ("emitted", "done", "rounds"):
        np.testing.assert_array_equal(getattr(part.state, name), getattr(whole.state, name))
    for b, (tokens, rounds) in enumerate(zip(whole.state.emitted, whole.state.rounds, strict=True)):
        for name, end in (("tokens", tokens), ("round_emitted", rounds), ("round_drafted", rounds)):
            one, other = (np.asarray(getattr(x.state, name))[b, :end] for x in (part, whole))
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("options", slow_except([TREE], [TREE, TREE | SEEDED, PLAIN | SEEDED]))
def test_tokens_and_statistics_are_those_of_the_whole_batch(mini, sizes, options):
    whole, part = finish_both(mini, **options)
    assert_same(whole, part)
    whole_run, *shrinking = sizes
    assert whole_run == shrinking[0] == 4 and sorted(set(shrinking)) == [1, 2, 4]
    assert shrinking == sorted(shrinking, reverse=True)


def test_a_round_of_the_trace_is_that_of_the_whole_batch(mini):
    whole, part = finish_both(mini, trace=True, **TREE)
    assert_same(whole, part)
    assert [len(one) for one in part.traces] == part.state.rounds.tolist()
    for one, other in zip(sum(part.traces, []), sum(whole.traces, []), strict=True):
        assert (one.path, one.bonus) == (other.path, other.bonus)
        for name in ("token", "parent", "depth"):
            np.testing.assert_array_equal(getattr(one.tree, name), getattr(other.tree, name))
        np.testing.assert_allclose(one.tree.logprob, other.tree.logprob, atol=1e-4)


def test_outputs_are_those_of_the_whole_batch(mini, sizes):
    """Stop strings, which the host looks for, end all but one of them early."""
    options = TREE | dict(stop=["e", "3 "])
    whole, part = (
        jaxspec.decode(mini, PROMPTS, shrink=way, **group_options(**options))
        for way in (False, True)
    )
    for one, other in zip(part, whole, strict=True):
        assert (one.tokens, one.text) == (other.tokens, other.text)
        ours, theirs = (
            dataclasses.replace(out.stats, prefill_seconds=0, decode_seconds=0, compile_seconds=0)
            for out in (one, other)
        )
        assert ours == theirs
    assert min(sizes) < 4


@pytest.mark.thorough
def test_a_batch_that_ends_together_is_never_gathered(tiny, sizes):
    whole, part = finish_both(tiny, [9, 9, 9, 9], prompts=IDS, **PLAIN)
    assert not part.shrunk and set(sizes) == {4} and part.state.cache is not None
    np.testing.assert_array_equal(part.state.tokens, whole.state.tokens)


def test_places_that_no_live_sequence_needs_are_filled(tiny, sizes):
    """Three of six go on, then two, for which there is no smaller batch than three."""
    limits = [40, 3, 9, 3, 3, 40]
    whole, part = finish_both(tiny, limits, prompts=[*IDS, [8], [3, 5]], **PLAIN)
    assert_same(whole, part)
    assert sorted(set(sizes)) == [3, 6]


@pytest.mark.thorough
def test_samples_of_one_prompt_keep_their_noise(tiny):
    whole, part = finish_both(tiny, [3, 9, 3, 30], prompts=[[7]] * 4, **PLAIN | SEEDED)
    assert_same(whole, part)
    assert whole.state.tokens[1, :9].tolist() != whole.state.tokens[3, :9].tolist()


def test_one_prompt_runs_as_ever(tiny, sizes):
    before = jaxspec.decode(tiny, IDS[0], **group_options(**PLAIN))
    counted, calls = compilations(), len(sizes)
    again = jaxspec.decode(tiny, [IDS[0]], shrink=True, **group_options(**PLAIN))
    assert again[0].tokens == before.tokens
    assert compilations() == counted and len(sizes) == 2 * calls


@pytest.mark.thorough
def test_after_a_warmup_nothing_compiles(tiny, sizes):
    options = TREE | dict(capacity=320)  # of this test alone
    assert (
        jaxspec.warmup(
            tiny, prompt_tokens=30, batch=2, shrink=True, **group_options(**options)
        ).programs
        > 0
    )
    before = compilations()
    finish_both(tiny, [3, 30], prompts=IDS[:2], **options)
    assert compilations() == before and min(sizes) == 1


def test_only_flags_are_taken(mini):
    with pytest.raises(TypeError, match="shrink is 2: give True or False"):
        jaxspec.decode(mini, PROMPTS, shrink=2)
    with pytest.raises(TypeError, match="shrink"):
        jaxspec.warmup(mini, prompt_tokens=4, shrink="yes")


@dataclasses.dataclass(frozen=True)
class Turns(PolicyConfig):
    """Each sequence verifies 1 to 4 rows, in turns of its own; all count their rounds together."""

    def functions(self):
        return _turns()


@functools.lru_cache
def _turns():
    def rows(controls, state, seen):
        return 1 + state[0] % 4

    def observe(controls, state, outcome):
        return state[0] + outcome.accepted.count, state[1] + 1

    def init(shape):
        return jnp.arange(shape.batch, dtype=jnp.int32), jnp.zeros((), jnp.int32)

    return Functions(init, Acts(rows=rows), observe)


@pytest.mark.slow
def test_states_of_policies_follow_their_sequences(tiny):
    options = TREE | dict(policy=Policy(Turns(), controls=None))
    whole, part = finish_both(tiny, [3, 30, 3, 3], prompts=IDS, **options)
    assert_same(whole, part)
    for one, other in zip(part.state.control, whole.state.control, strict=True):
        np.testing.assert_array_equal(one, other)
    assert part.state.round_steps.shape == whole.state.round_steps.shape


@pytest.mark.slow
def test_the_automatic_policy_measures_each_size_and_keeps_its_own_costs(mini):
    options = dict(max_new_tokens=64, temperature=1.0, ignore_eos=True)
    session, hooks = tune(prepare(mini, PROMPTS, **group_options(**options)))
    limits = np.array([60, 3, 3, 3], np.int32)
    session = dataclasses.replace(session, request=session.request.replace(limit=limits))
    outputs, _ = run_session(session, shrink=True, hooks=hooks)
    alone = jaxspec.decode(mini, PROMPTS, **group_options(**options | dict(drafter="ar")))
    assert [out.tokens for out in outputs] == [
        out.tokens[:count] for out, count in zip(alone, limits, strict=True)
    ]
    find_path = process_tuner()._policies.find_path
    one, four = (load_costs(find_path(session.params, session.config, batch)) for batch in (1, 4))
    assert one.contexts[0] > 0  # measured when the batch had shrunk
    own = outputs[0].policy.controls.costs
    np.testing.assert_allclose(own.draft, four.draft, rtol=1e-6)


def shape_prefill(session):
    args, static = prefill_arguments(session)
    return prefill.trace(*args, **static).out_info


@pytest.mark.parametrize("method", ["ar", *(record.name for record in records())])
def test_sequences_have_an_axis_in_every_drafters_state(method):
    """Compare with the shapes of a prefill for two batch sizes; nothing is compiled."""
    params = make_params("qwen3", () if method == "ar" else (method,))
    three, five = (
        prepare(params, [[1, 2]] * batch, drafter=method, budget=4, max_new_tokens=8)
        for batch in (3, 5)
    )
    shapes, larger = (shape_prefill(session) for session in (three, five))
    axes = find_axes(three, shapes)

    def check(axis, one, other):
        same = list(one.shape)
        if axis != SHARED:
            same[axis] = 5
        assert tuple(same) == other.shape

    jax.tree.map(check, axes, shapes, larger)


@pytest.mark.thorough
def test_a_batch_shrinks_of_itself_once_that_pays(tiny, sizes, tmp_path):
    tuner = Tuner(tmp_path)
    prices = tuner._shrinking.prices
    session = prepare(tiny, IDS, **group_options(ignore_eos=True, **PLAIN))
    request = session.request.replace(limit=np.asarray(LIMITS, np.int32))
    session = dataclasses.replace(session, request=request)
    key = find_key(session)

    def finish_with(price):
        if price is not None:
            prices[key] = price
        sizes.clear()
        done = run_to_end(session, run_prefill(session), shrink=None, hooks=tuner)
        return done, set(sizes)

    whole, used = finish_with(None)  # what compiling took is not known
    assert used == {4} and not whole.shrunk
    prices.clear()
    assert finish_with(1e9)[1] == {4}
    part, used = finish_with(1e-9)
    assert used > {4}
    assert_same(whole, part)
    # What is compiled is used at once, whatever compiling would cost.
    smaller = [find_key(session, size) for size in used - {4}]
    prices.update(dict.fromkeys(smaller, 1e9))
    assert finish_with(1e9)[1] == used


def test_what_finished_sequences_cost_adds_up(tiny):
    session, shrinking = prepare(tiny, IDS, **group_options(**PLAIN)), ShrinkPrices()
    shrinking.prices[find_key(session)] = 10.0
    # Half of the time of a round is that of finished sequences.
    found = [shrinking.pays(session, 2, 6.0) for _ in range(4)]
    assert found == [False, False, False, True]


def test_compiling_is_noted_also_where_the_program_was_on_disk(tiny, monkeypatch):
    session, shrinking = prepare(tiny, IDS, **group_options(**PLAIN)), ShrinkPrices()
    with shrinking.timing_compilation(session):
        pass
    assert not shrinking.prices
    counted, saved = iter((0, 1)), iter((2.0, 9.0))
    monkeypatch.setattr(shrink_choice, "compilations", lambda: next(counted))
    monkeypatch.setattr(shrink_choice, "saved_seconds", lambda: next(saved))
    with shrinking.timing_compilation(session):
        pass
    assert shrinking.prices[find_key(session)] == pytest.approx(7.0, abs=0.5)


def test_tokens_never_depend_on_the_clock(tiny, tmp_path):
    tuner = Tuner(tmp_path)
    assert tuner.may_shrink(prepare(tiny, IDS, **group_options(**PLAIN)))
    cast = tiny.replace(target=jax.tree.map(lambda x: x.astype(jnp.bfloat16), tiny.target))
    assert not tuner.may_shrink(prepare(cast, IDS, **group_options(**PLAIN)))


def test_decode_asks_whether_shrinking_pays(mini, sizes, tmp_path, monkeypatch):
    tuner = Tuner(tmp_path)
    monkeypatch.setattr(tuner, "shrinking_pays", lambda *arguments: True)
    options = TREE | dict(stop=["e", "3 "])
    found = [jaxspec.decode(mini, PROMPTS, shrink=False, **group_options(**options))]
    assert set(sizes) == {4}
    found.append(jaxspec.decode(mini, PROMPTS, tuner=tuner, **group_options(**options)))
    assert min(sizes) < 4
    assert [out.tokens for out in found[0]] == [out.tokens for out in found[1]]


@pytest.mark.parametrize("together", slow_except([True], [True, False]))
def test_what_compiling_took_is_noted_wherever_it_happens(tiny, monkeypatch, together):
    """Beside the prefill on a CPU; elsewhere in the first rounds, which the default times."""
    options = dict(max_new_tokens=8, capacity=448 if together else 512)  # of this test alone
    if together:
        options["drafter"] = "ar"  # compiles in half the time
    else:
        monkeypatch.setattr(start, "_suits", lambda session: False)
    jaxspec.decode(tiny, IDS, **group_options(**options))
    session, tuner = tune(prepare(tiny, IDS, **group_options(**options)))
    assert tuner._shrinking.prices[find_key(session)] > 0
