"""Decode calls that draft by suffixes: trees, texts, kept answers, and mixtures."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import serve_toys
from golden_data import SHIPPED
from suffix_tree import SuffixTree, speculate

import jaxspec
from jaxspec.builders import make_builder
from jaxspec.call.options import group_options
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import Request
from jaxspec.drafters.base import Committed, Drafter, Proposal
from jaxspec.drafters.prompt_lookup.mixture import mix_lookup
from jaxspec.drafters.suffix.drafter import SuffixConfig
from jaxspec.drafters.suffix.store import forget, remember
from jaxspec.drafters.suffix.text import Text
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.plan import DecodeConfig
from jaxspec.round.proposals import _spread, noise_at
from jaxspec.serve import ServeRequest

GOLDEN = SHIPPED / "treeflash"
# Texts that repeat themselves, as the greedy texts of the model do.
PROMPTS = [[20, 90, 30, 100, 7, 20, 90, 31, 20, 90], [140, 44, 95, 12, 181, 3], [5]]
FACTOR, LONGEST, DEPTH = (getattr(SuffixConfig, x) for x in ("factor", "longest", "depth"))


@functools.cache
def load():
    return jaxspec.load(GOLDEN / "target", drafter={"x": GOLDEN / "draft"}, dtype="float32")


def decode(params=None, prompts=PROMPTS, **options):
    options = dict(max_new_tokens=40, drafter="suffix", budget=33) | options
    return jaxspec.decode(params or load(), prompts, **group_options(**options))


def path_of(tree, row):
    path = []
    while row > 0:
        path.append(int(tree.token[row]))
        row = int(tree.parent[row])
    return tuple(reversed(path))


def check_tree(tree, text, texts=None, longest=LONGEST, factor=FACTOR):
    """The tree is the best-first one, up to the order of equal chances."""
    whole = SuffixTree([text] if texts is None else texts, longest + DEPTH)
    wanted, _ = speculate(whole, text, longest=longest, depth=DEPTH, factor=factor)
    found = [path_of(tree, row) for row in range(1, len(tree.token))]
    assert len(found) == len(set(found)) == len(wanted)
    chances = np.exp(np.asarray(tree.logprob[1:], np.float64))
    np.testing.assert_allclose(chances, [chance for _, chance in wanted], rtol=1e-4)
    surely = {path for path, chance in wanted if chance > wanted[-1][1] * 1.001}
    assert surely <= set(found)
    return len(found)


def test_every_rounds_tree_is_the_suffix_trees():
    sizes = []
    for prompt, out in zip(PROMPTS, decode(trace=True), strict=True):
        at = 1
        for step in out.rounds:
            sizes.append(check_tree(step.tree, [*prompt, *out.tokens[:at]]))
            at += len(step.path)
    assert min(sizes) == 0 and max(sizes) > 10


def test_trees_of_texts_of_few_tokens():
    """The same token follows at the same depth below different nodes."""
    rng, length = np.random.default_rng(2), 60
    texts = np.concatenate([rng.integers(0, size, (12, length)) for size in (2, 3, 5)])
    sampling, values = make_sampling()
    config = DecodeConfig("suffix", sampling, make_builder("lattice"), budget=33)

    # Short suffixes, which occur often, and large trees.
    own = dict(longest=2, factor=16.0)
    params = load().with_drafter("suffix", SuffixConfig(vocab_size=197, **own), {})

    @jax.jit
    def run(texts):
        batch = len(texts)
        none, full = np.zeros(batch, np.int32), jnp.full(batch, length, jnp.int32)
        request = Request(none, none, 0, none.astype(np.uint32), values)
        round = make_round(params, request, config)
        state = SimpleNamespace(
            root=texts[:, -1],
            done=full < 0,
            draft=Text(jnp.pad(texts, ((0, 0), (0, 4))), full),
            cache=SimpleNamespace(length=full - 1),
            block=None,
        )
        return grow(round, state, draft(round, state, None))

    trees = jax.tree.map(np.asarray, run(jnp.asarray(texts, jnp.int32)))
    branches = 0
    for i, text in enumerate(texts.tolist()):
        size = trees.size[i]
        names = ("token", "parent", "logprob")
        tree = SimpleNamespace(**{name: getattr(trees, name)[i, :size] for name in names})
        check_tree(tree, text, **own)
        levels = [
            (int(d), int(t)) for d, t in zip(trees.depth[i, 1:size], tree.token[1:], strict=True)
        ]
        branches += len(levels) - len(set(levels))
    assert branches > 100


SAMPLED = dict(temperature=0.7, seed=4)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="greedy"),
        pytest.param(SAMPLED, id="sampled", marks=pytest.mark.thorough),
        *(
            pytest.param(options, id=name, marks=pytest.mark.slow)
            for name, options in {
                "chain": {"builder": "chain", "budget": 9},
                "sampled chain": SAMPLED | {"builder": "chain"},
                "dynamic": {"builder": "dynamic/w4", "budget": 16},
                "uncoupled": SAMPLED | {"coupled": False},
                "filters": SAMPLED | {"top_k": 12},
                "penalties": SAMPLED | {"presence_penalty": 0.3},
                "sequential": {"acceptance": "sequential"},
            }.items()
        ),
    ],
)
def test_the_text_is_the_targets(options):
    same = {"temperature", "seed", "top_k", "presence_penalty"}
    plain = {name: value for name, value in options.items() if name in same}
    texts = [out.tokens for out in decode(drafter="ar", budget=None, **plain)]
    outs = decode(**options)
    assert [out.tokens for out in outs] == texts
    assert sum(out.stats.rounds for out in outs) < sum(map(len, texts)) - len(texts)


@pytest.mark.slow
def test_rejection_sampling():
    outs = decode(builder="chain", budget=9, acceptance="rejection", **SAMPLED)
    assert all(len(out.tokens) == 40 for out in outs)
    assert sum(out.stats.rounds for out in outs) < 117


@pytest.mark.thorough
def test_kept_answers_help_and_change_no_text():
    first = decode()
    kept = remember(load(), [out.tokens for out in first], size=256)
    again = decode(kept, trace=True)
    assert [out.tokens for out in again] == [out.tokens for out in first]
    rounds = [[out.stats.rounds for out in outs] for outs in (first, again)]
    assert sum(rounds[1]) < sum(rounds[0]) / 2
    # The second round's tree comes from the answers, in which nothing else follows.
    step = again[1].rounds[1]
    text = [*PROMPTS[1], *again[1].tokens[: 1 + len(again[1].rounds[0].path)]]
    assert check_tree(step.tree, text, [out.tokens for out in first]) > 0
    assert [out.stats.rounds for out in decode(forget(kept))] == rounds[0]


def test_a_store_keeps_its_size_and_the_newest_answers():
    kept = remember(load(), [[1, 2, 3], [4, 5]], size=8)
    assert kept.drafters["suffix"]["store"]["token"].tolist() == [-1, 1, 2, 3, -1, 4, 5, -1]
    more = remember(kept, [[6, 7, 8]])
    assert more.drafters["suffix"]["store"]["token"].tolist() == [-1, 4, 5, -1, 6, 7, 8, -1]
    assert remember(load(), []).drafters["suffix"]["store"]["token"].shape == (2**16,)
    assert more.spec == load().spec and "suffix" not in forget(more).drafters
    with pytest.raises(ValueError, match="size is 1: give at least 2 tokens"):
        remember(load(), [], size=1)


@pytest.mark.thorough
def test_answers_of_equal_stores_compile_once():
    one, two = (remember(load(), [[3, 4, n]], size=64) for n in (5, 6))
    decode(one, max_new_tokens=8)
    before = compilations()
    decode(two, max_new_tokens=8)
    assert compilations() == before


def test_nothing_follows_the_end_of_an_answer():
    prompt = [9, 20, 90]
    (plain,) = decode(prompts=[prompt], drafter="ar", budget=None, max_new_tokens=3)
    root, following = plain.tokens[:2]
    assert root not in prompt
    sizes = []
    # A shorter suffix that something follows is better than a longer one at an answer's end.
    shorter = [[90, root], [7, root, following]]
    for answers in ([[90, root], [following]], [[90, root, following]], shorter):
        kept = remember(load(), answers, size=32)
        (out,) = decode(kept, [prompt], max_new_tokens=3, trace=True)
        sizes.append(len(out.rounds[0].tree.token))
        assert out.tokens == plain.tokens
    assert sizes == [1, 2, 2]


@pytest.mark.thorough
def test_mixed_into_a_drafter():
    for temperature in (0.0, 0.7):
        options = dict(temperature=temperature, seed=4)
        texts = [out.tokens for out in decode(drafter="ar", budget=None, **options)]
        outs = decode(drafter="x", budget=8, builder="dynamic/w4", lookup="suffix", **options)
        assert [out.tokens for out in outs] == texts


def test_what_is_mixed_in():
    """After 5 came 1 twice and, the last time, 2."""
    text = jnp.array([[5, 1, 5, 1, 5, 2, 5]])
    toy = Drafter(
        (), 2, 2, lambda *sizes: (), lambda params, state, *new: state, lambda *given: None
    )
    found = []
    for source in (True, "suffix"):
        drafter = mix_lookup(toy, source)
        new = Committed(text[:, :-1], text[:, 1:], None, jnp.zeros(1, jnp.int32), jnp.array([6]))
        copies = drafter.absorb({}, drafter.init(1, 12, jnp.float32), None, new).copies
        found.append((copies.token.tolist(), copies.matched.tolist()))
    assert found == [([[2, 5]], [1]), ([[1, 5]], [1])]


def test_columns_of_tokens():
    """Noise and whole distributions of a few named tokens."""
    noise = jax.random.normal(jax.random.key(0), (2, 3, 9))
    places, tokens = jnp.array([[0, 2], [1, 7]]), jnp.array([[[1, 4], [8, 0]], [[2, 2], [3, 5]]])
    found = noise_at(noise, places, tokens)
    np.testing.assert_array_equal(found[0, 1], noise[0, 2, jnp.array([8, 0])])
    np.testing.assert_array_equal(found[1, 1], noise[1, 2, jnp.array([3, 5])])
    logits = jnp.log(jnp.array([[[[2.0, 0.0, 3.0]]]]))
    whole = _spread(Proposal(logits, tokens=jnp.array([[[[4, 4, 1]]]])), 6)
    np.testing.assert_allclose(jnp.exp(whole.logits[0, 0, 0]), [0, 3, 0, 0, 2, 0], rtol=1e-6)
    assert whole.tokens is None


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"drafter": "suffix"}, {"drafter": "x", "lookup": "suffix"}])
def test_the_serving_engine(options):
    """Texts are those of plain decoding; the store holds them, so that drafts are right."""
    sampled = dict(temperature=0.7, seed=5, max_new_tokens=12)
    texts = [
        jaxspec.decode(load(), prompt, **group_options(drafter="ar", **sampled)).tokens
        for prompt in PROMPTS
    ]
    params = remember(load(), texts, size=64)
    engine = serve_toys.make(params, capacity=128, max_logprobs=0, **options)
    found = serve_toys.run(engine, *(ServeRequest(tuple(prompt), **sampled) for prompt in PROMPTS))
    assert [tokens for tokens, *_ in found] == texts
    assert all(any(drafted) for _, _, drafted, _ in found)
