"""The public call: stops, limits, batches, streaming, options; on the golden tiny target with its
trained drafters.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.round import verify
from jaxspec.targets.transformer import Transformer

GOLDEN = SHIPPED
PROMPTS = [[117, 142, 122, 64, 240, 19], [3], list(range(40, 75)), [9, 8, 7]]


@pytest.fixture(scope="module")
def params():
    """One target with both kinds of drafter; the JetSpec golden head was trained for the twin of
    this target.
    """
    target = GOLDEN / "dflash" / "target"
    drafters = {"dflash": GOLDEN / "dflash/drafter", "jetspec": GOLDEN / "jetspec/drafter"}
    return shorten(jaxspec.load(target, drafter=drafters))


METHODS = [
    dict(drafter="dflash", builder="chain", budget=8),
    dict(drafter="dflash", builder="best_first", budget=12),
    dict(drafter="jetspec", builder="expand/w3", budget=16),
    dict(drafter="jetspec", builder="best_first", budget=40),
]


SLOW = pytest.mark.slow
# One program of a single greedy sequence and one of the batch serve most tests that follow.
TREE = METHODS[1]
SAMPLING = [{}, dict(temperature=1.0), dict(temperature=0.7, top_p=0.9, seed=3)]
# Every combination is a compilation: by default each temperature with one method.
CASES = [
    pytest.param(options, sampling, id=f"{options}-{sampling}", marks=() if i == j < 2 else SLOW)
    for i, sampling in enumerate(SAMPLING)
    for j, options in enumerate(METHODS)
]


@pytest.mark.parametrize(("options", "sampling"), CASES)
def test_text_does_not_depend_on_the_drafter_or_the_batch(params, options, sampling):
    reference = [
        jaxspec.decode(
            params, p, drafter="ar", max_new_tokens=40, **group_options(**sampling)
        ).tokens
        for p in PROMPTS
    ]
    drafted = jaxspec.decode(
        params, PROMPTS, max_new_tokens=40, **group_options(**options, **sampling)
    )
    assert [out.tokens for out in drafted] == reference
    assert all(out.stats.emitted == 40 for out in drafted)


@pytest.mark.slow
def test_uncoupled_drafts_change_nothing(params):
    sampling = dict(temperature=1.0, seed=5, max_new_tokens=30, budget=32)
    outs = [
        jaxspec.decode(params, PROMPTS[0], **group_options(coupled=coupled, **sampling))
        for coupled in (True, False)
    ]
    assert (
        outs[0].tokens
        == outs[1].tokens
        == jaxspec.decode(params, PROMPTS[0], drafter="ar", **group_options(**sampling)).tokens
    )


def test_repeats_in_a_batch_are_independent_and_seeds_matter(params):
    sampling = dict(temperature=1.0, max_new_tokens=40)
    prompts = [PROMPTS[0], PROMPTS[0], *PROMPTS[2:]]
    first, second = jaxspec.decode(params, prompts, **group_options(**TREE, **sampling))[:2]
    assert first.tokens != second.tokens
    other = jaxspec.decode(params, prompts, seed=1, **group_options(**TREE, **sampling))[0]
    assert first.tokens != other.tokens
    for seed, out in enumerate((first, other)):
        alone = jaxspec.decode(
            params, PROMPTS[0], drafter="ar", seed=seed, **group_options(**sampling)
        )
        assert out.tokens == alone.tokens


@pytest.mark.parametrize(
    ("builder", "acceptance"),
    slow_except(
        [("best_first", "rejection")],
        itertools.product(("chain", "best_first", "expand"), ("sequential", "rejection")),
    ),
)
def test_other_acceptance_rules_run_and_equal_greedy_at_zero(params, builder, acceptance):
    options = dict(builder=builder, budget=8, acceptance=acceptance, max_new_tokens=40)
    out = jaxspec.decode(params, PROMPTS, temperature=1.0, **group_options(**options))
    assert all(len(one.tokens) == 40 for one in out)
    greedy = jaxspec.decode(params, PROMPTS, **group_options(**options))
    plain = [jaxspec.decode(params, p, drafter="ar", max_new_tokens=40).tokens for p in PROMPTS]
    assert [one.tokens for one in greedy] == plain


@pytest.mark.parametrize("method", ["ar", "dflash"])
@pytest.mark.parametrize("place", range(0, 30, 3))
def test_a_stop_id_ends_the_text_inside_a_block(params, method, place):
    whole = jaxspec.decode(params, PROMPTS[0], drafter="ar", max_new_tokens=40).tokens
    stop = whole[place]
    out = jaxspec.decode(
        params,
        PROMPTS[0],
        stop=[stop],
        max_new_tokens=40,
        trace=True,
        **group_options(**TREE if method == "dflash" else dict(drafter=method)),
    )
    assert out.tokens == whole[: whole.index(stop) + 1]
    assert out.stats.finish_reason == "stop"
    assert sum(len(r.path) for r in out.rounds) == len(out.tokens) - 1


@pytest.mark.parametrize("options", slow_except([TREE], METHODS), ids=str)
@pytest.mark.parametrize("limit", [1, 7, 11])
def test_max_new_tokens_is_exact(params, limit, options):
    whole = jaxspec.decode(params, PROMPTS[0], drafter="ar", max_new_tokens=40).tokens
    out = jaxspec.decode(params, PROMPTS[0], max_new_tokens=limit, **group_options(**options))
    assert out.tokens == whole[:limit]
    assert sum(i * n for i, n in enumerate(out.stats.accept_hist)) == limit - 1


def test_nothing_beyond_the_end_is_cached(params):
    from jaxspec.call.run import run_to_end
    from jaxspec.call.session import prepare, run_prefill

    session = prepare(params, PROMPTS, max_new_tokens=40, **group_options(**METHODS[0]))
    state = run_to_end(session, run_prefill(session)).state
    # The last token of a text is the root of a round that never runs, so its row is not cached.
    np.testing.assert_array_equal(state.cache.length, [len(p) + 39 for p in PROMPTS])
    np.testing.assert_array_equal(state.draft.length, state.cache.length)


def test_stream_joins_to_the_tokens_of_decode(params):
    options = dict(max_new_tokens=33, **TREE)
    pieces = list(jaxspec.stream(params, PROMPTS[2], **group_options(**options)))
    assert sum(pieces, []) == jaxspec.decode(params, PROMPTS[2], **group_options(**options)).tokens
    assert len(pieces) > 1


def test_trace_describes_every_round(params):
    out = jaxspec.decode(params, PROMPTS[0], max_new_tokens=40, trace=True, **group_options(**TREE))
    tokens = out.tokens[:1]
    for r in out.rounds:
        assert r.path[0] == 0 and r.tree.token[0] == tokens[-1]
        assert all(r.tree.parent[b] == a for a, b in zip(r.path, r.path[1:], strict=False))
        tokens += [*r.tree.token[list(r.path[1:])].tolist(), r.bonus]
    assert tokens[: len(out.tokens)] == out.tokens
    assert out.stats.rounds == len(out.rounds)
    assert out.stats.drafted == sum(len(r.tree.token) - 1 for r in out.rounds)
    assert out.stats.mean_acceptance_length == pytest.approx(39 / len(out.rounds))


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.thorough)])
def test_traces_hold_what_the_target_thinks_of_every_row(params, temperature):
    """As a plain forward pass does over the text and the path to each row."""
    options = dict(TREE, temperature=temperature)
    if temperature:
        options |= dict(top_k=2, presence_penalty=1.0)  # which leave these figures alone
    outs = jaxspec.decode(
        params, PROMPTS[:2], max_new_tokens=12, trace=True, **group_options(**options)
    )
    model = Transformer(params.spec.target)

    @jax.jit
    def score(text):
        hidden = model.apply(params.target, text[None], jnp.arange(64)[None]).hidden[0]
        logits = model.apply(params.target, hidden, method="logits").astype(jnp.float32)
        return jax.nn.log_softmax(logits / (temperature or 1.0))

    for prompt, out in zip(PROMPTS, outs, strict=False):
        known = [*prompt, out.tokens[0]]
        for traced in out.rounds[:3]:
            tree, paths = traced.tree, {0: []}
            assert tree.target_logprob[0] == 0
            for row in range(1, len(tree.token)):
                path = paths[int(tree.parent[row])]
                text = np.zeros(64, np.int32)
                text[: len(known) + len(path)] = [*known, *path]
                expected = score(text)[len(known) + len(path) - 1, tree.token[row]]
                assert tree.target_logprob[row] == pytest.approx(float(expected), abs=1e-3)
                paths[row] = [*path, int(tree.token[row])]
            known += [*tree.token[list(traced.path[1:])].tolist(), traced.bonus]


def test_save_and_load_again(params, tmp_path):
    jaxspec.save(params, tmp_path / "copy")
    again = jaxspec.load(tmp_path / "copy")
    assert set(again.drafters) == {"dflash", "jetspec"}
    options = dict(max_new_tokens=20, **TREE)
    assert (
        jaxspec.decode(again, PROMPTS[0], **group_options(**options)).tokens
        == jaxspec.decode(params, PROMPTS[0], **group_options(**options)).tokens
    )


@pytest.mark.slow
def test_long_prompts_go_through_in_chunks(params, monkeypatch):
    longer = dataclasses.replace(params.spec.target, max_positions=2048)
    params = params.replace(spec=dataclasses.replace(params.spec, target=longer))
    prompt = np.random.default_rng(0).integers(0, 250, 700).tolist()
    prompts = [prompt, prompt[:513], [5, 6]]
    outs = jaxspec.decode(params, prompts, max_new_tokens=12, budget=32)
    for one, out in zip(prompts, outs, strict=True):
        assert out.tokens == jaxspec.decode(params, one, drafter="ar", max_new_tokens=12).tokens
    # The same prompt in one piece.
    jax.clear_caches()
    for module in ("round.sizes", "call.prefill"):
        monkeypatch.setattr(f"jaxspec.{module}.prompt_chunk", lambda: 1024)
    whole = jaxspec.decode(
        params, prompt, max_new_tokens=12, budget=32, speculation=jaxspec.Speculation(block_size=7)
    )
    assert whole.tokens == outs[0].tokens


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "empty prompt"),
        ("", {}, "no tokenizer"),
        ([[1, 2], []], {}, "empty prompt"),
        ("text", {}, "no tokenizer"),
        ([1, 300], {}, "outside the vocabulary"),
        ([1] * 2000, {}, "positions"),
        ([1], {"drafter": "eagle9"}, "unknown drafter"),
        ([1], {"builder": "oak"}, "unknown builder"),
        ([1], {"budget": 0}, "budget"),
        ([1], {"builder": "expand/w0"}, "width is 0"),
        ([1], {"block_size": 1}, "block_size"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": 1.0, "top_p": 0.0}, "top_p"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens"),
        ([1], {"acceptance": "hope"}, "acceptance"),
        ([1], {"stop": "word"}, "tokenizer"),
    ],
)
def test_bad_input_is_refused_in_one_line(params, prompt, options, message):
    with pytest.raises(ValueError, match=message) as error:
        jaxspec.decode(params, prompt, **group_options(**options))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_two_rows_at_least_are_the_same_text(params, monkeypatch):
    """As on a GPU: the second row is padding."""
    options = dict(max_new_tokens=12, temperature=0.7, top_k=9)
    plain = jaxspec.decode(params, PROMPTS[0], drafter="ar", **group_options(**options))
    monkeypatch.setattr(verify, "_least_rows", lambda batch: 2)
    jax.clear_caches()
    padded = jaxspec.decode(params, PROMPTS[0], drafter="ar", **group_options(**options))
    jax.clear_caches()
    assert padded.tokens == plain.tokens and padded.stats.accept_hist == plain.stats.accept_hist
