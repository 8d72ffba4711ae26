"""Acceptance rules: golden walks, brute force, exact output distributions, and a check that can
fail.
"""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from golden_data import arrays, records
from hypothesis import given, settings
from slow_cases import slow_except
from verify_trees import make_tree, stack

from jaxspec.acceptance import (
    accept_match,
    accept_rejection,
    accept_sequential,
    sample_candidates,
)
from jaxspec.acceptance.rejection import RANK_DECAY
from jaxspec.acceptance.sequential import walk_sequential
from jaxspec.core.sampling.noise import gumbel, sequence_keys, uniform
from jaxspec.core.sampling.sampling import argmax, draw, process
from jaxspec.core.sampling.settings import make_sampling

_match = jax.jit(accept_match, static_argnums=2)


def brute_walk(tokens, parents, target, longest):
    """Child-map walk of DDTree and JetSpec: a later sibling overwrites an earlier one."""
    children = {(parents[i], tokens[i]): i for i in range(1, len(tokens))}
    path = [0]
    while len(path) <= longest and (path[-1], target[path[-1]]) in children:
        path.append(children[path[-1], target[path[-1]]])
    return path, target[path[-1]]


def check_walks(cases, longest=None, rows=None):
    """Compare `accept_match` with (tokens, parents, target, path, bonus) of each case; without
    `longest` and `rows`, at the sizes of the cases.
    """
    rows = rows or max(len(case[0]) for case in cases)
    longest = longest or max(len(case[3]) for case in cases)
    trees = stack([make_tree(tokens, parents, rows) for tokens, parents, *_ in cases])
    target = np.stack([np.pad(case[2], (0, rows - len(case[2]))) for case in cases]).astype(
        np.int32
    )
    out = _match(trees, target, longest)
    assert out.path.shape == (len(cases), longest + 1)
    for b, (*_, path, bonus) in enumerate(cases):
        assert int(out.count[b]) == len(path)
        np.testing.assert_array_equal(out.path[b], path + [0] * (longest + 1 - len(path)))
        assert int(out.bonus[b]) == bonus


def test_jetspec_accept_cases():
    cases = records("jetspec", "accept.json")
    fields = ("tokens", "parents", "target_greedy", "path", "correction")
    check_walks([[case[field] for field in fields] for case in cases])


def test_ddtree_follow_cases():
    index = records("ddtree", "trees_index.json")["trees"]
    nodes = arrays("ddtree", "trees.npz")
    cases = []
    for record in records("ddtree", "follow.json"):
        entry = next(
            t for t in index if t["case"] == record["case"] and t["budget"] == record["budget"]
        )
        span = slice(entry["offset"], entry["offset"] + entry["n"])
        tree = [nodes["tokens"][span].tolist(), nodes["parents"][span].tolist()]
        cases.append([*tree, record["posterior"], record["accepted_indices"], record["next_token"]])
    check_walks(cases)


@st.composite
def random_case(draw):
    size, vocab = draw(st.integers(1, 70)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    reach = draw(st.sampled_from([1, 3, 70]))
    parents = [-1] + [int(rng.integers(max(0, i - reach), i)) for i in range(1, size)]
    tokens, target = rng.integers(0, vocab, (2, size)).tolist()
    return tokens, parents, target


@settings(max_examples=80, deadline=None)
@given(cases=st.lists(random_case(), min_size=4, max_size=4), longest=st.sampled_from([5, 69]))
def test_match_equals_brute_force(cases, longest):
    check_walks([[*case, *brute_walk(*case, longest)] for case in cases], longest, 70)


def test_padding_rows_are_never_accepted():
    tree = make_tree([1, 2, 3], [-1, 0, 1], 6)
    tree = tree.replace(
        parent=np.array([-1, 0, 1, 2, 0, 0], np.int32), token=np.array([1, 2, 3, 4, 9, 2], np.int32)
    )
    out = _match(stack([tree]), jnp.array([[2, 3, 4, 4, 4, 4]]), 5)
    np.testing.assert_array_equal(out.path[0], [0, 1, 2, 0, 0, 0])
    assert int(out.bonus[0]) == 4


# The rule of EAGLE, given its logits and its uniform draws


def eagle_logits(logits, case):
    """Temperature, then top-p, then top-k: EAGLE's order, not transformers'. Logits here have no
    ties.
    """
    logits = logits / case["temperature"]
    ranked = np.sort(logits, axis=-1)[:, ::-1]
    mass = np.cumsum(np.exp(ranked), axis=-1)
    if case["top_p"]:
        last = (mass < case["top_p"] * mass[:, -1:]).sum(-1, keepdims=True)
        keep = logits >= np.take_along_axis(ranked, last, axis=-1)
    else:
        keep = np.ones_like(logits, bool)
    if case["top_k"]:
        keep &= logits >= ranked[:, case["top_k"] - 1 : case["top_k"]]
    return np.where(keep, logits, -np.inf)


def eagle_draws(case, path, rows):
    """Uniform draws by row: the children of each accepted row are tried in order, one draw for each
    new token.
    """
    draws, left = np.full(rows, 0.5, np.float32), list(case["uniforms"])
    for row, accepted in zip(path, [*path[1:], None], strict=True):
        tried = set()
        for child in (i for i, parent in enumerate(case["parents"]) if parent == row):
            if case["tokens"][child] not in tried:
                draws[child] = left.pop(0)
                tried.add(case["tokens"][child])
            if child == accepted:
                break
    assert not left
    return draws


def branches_of_equal_siblings_are_merged(case, path):
    """EAGLE goes on with the children of every sibling that holds the accepted token; a tree of
    jaxspec has no such rows.
    """
    parents, tokens = case["parents"], case["tokens"]
    twins = [
        j
        for i in path[1:]
        for j in range(len(tokens))
        if j != i and (parents[j], tokens[j]) == (parents[i], tokens[i])
    ]
    return any(j in parents for j in twins)


def test_eagle_accept_cases():
    cases = records("eagle3", "accept_cases.json")
    found = arrays("eagle3", "accept_cases.npz")
    rows = max(len(case["tokens"]) for case in cases)
    walk = jax.jit(functools.partial(walk_sequential, longest=rows - 1), static_argnames="spec")
    spec, values = make_sampling(1.0)
    checked = 0
    for i, case in enumerate(cases):
        path = case["retrieve_indices"][case["best_candidate"]][: case["accept_length"] + 1]
        if branches_of_equal_siblings_are_merged(case, path):
            continue
        checked += 1
        tree = make_tree(case["tokens"], case["parents"], rows)
        logits, expected = found[f"case{i}_node_logits"], found[f"case{i}_sample_p"]
        logits = np.pad(logits, ((0, rows - len(logits)), (0, 0)))
        if case["temperature"] == 0:
            out = _match(stack([tree]), logits.argmax(-1).astype(np.int32)[None], rows - 1)
            assert tree.token[out.path[0, : out.count[0]]].tolist() == tree.token[path].tolist()
            assert int(out.bonus[0]) == expected.argmax()
            continue
        warm = eagle_logits(logits, case).astype(np.float32)
        out, left = walk(tree, warm, eagle_draws(case, path, rows), spec=spec, values=values)
        assert out.path[: out.count].tolist() == path
        np.testing.assert_allclose(left / left.sum(), expected, atol=2e-6)
    assert checked > len(cases) // 2


# Exact output distributions: a Markov target on a small vocabulary, a noisy drafter of marginals

VOCAB, SAMPLES, START, POSITION, DEPTH = 8, 25_000, 3, 40, 3
SHAPES = {
    "chain": ([-1, 0, 1, 2], [0, 0, 0, 0]),
    "tree": ([-1, 0, 0, 1, 1, 2, 3, 0, 3], [0, 0, 1, 0, 1, 0, 0, 2, 1]),
}
TARGET = (np.random.default_rng(0).normal(size=(VOCAB, VOCAB)) * 1.3).astype(np.float32)


def drafter_table():
    """Logits [root token, depth, V]: the target's true marginals under noise."""
    transition = np.exp(TARGET) / np.exp(TARGET).sum(-1, keepdims=True)
    marginals = np.stack([np.linalg.matrix_power(transition, d + 1) for d in range(DEPTH)], axis=1)
    return (np.log(marginals) + np.random.default_rng(1).normal(size=marginals.shape) * 0.8).astype(
        np.float32
    )


DRAFTER = drafter_table()


def toy_tree(shape, candidates, root):
    """Every sequence gets the same shape, filled with its own candidates."""
    parents, ranks = SHAPES[shape]
    tree = make_tree(np.zeros(len(parents)), parents)
    token = jnp.concatenate(
        [root[:, None], candidates[:, np.maximum(tree.depth - 1, 0), ranks][:, 1:]], axis=1
    )
    tree = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (root.shape[0], *np.shape(leaf))), tree)
    return tree.replace(token=token)


@functools.partial(jax.jit, static_argnames=("rule", "shape", "spec"))
def toy_round(root, position, keys, values, *, rule, shape, spec):
    """Draft, verify, accept: (tokens of the tree, Accepted)."""
    draft_logits = jnp.asarray(DRAFTER)[root]
    noise = gumbel(keys, position[:, None] + 1 + jnp.arange(DEPTH + 1), VOCAB)
    if rule == "rejection":
        chosen, draft_logprob = sample_candidates(draft_logits, 3, spec, values, keys, position)
        candidates = chosen.token
    else:
        scores = (
            process(draft_logits, spec, values) + noise[:, :DEPTH]
            if rule == "coupled"
            else draft_logits
        )
        candidates = jax.lax.top_k(scores, 3)[1]
    tree = toy_tree(shape, candidates, root)
    logits = jnp.asarray(TARGET)[tree.token]
    if rule == "sequential":
        return tree.token, accept_sequential(tree, logits, spec, values, keys, position, DEPTH)
    if rule == "rejection":
        return tree.token, accept_rejection(
            tree, logits, draft_logprob, spec, values, keys, position, DEPTH
        )
    target_token = draw(logits, noise, tree.depth, spec, values)
    if rule != "argmax":
        return tree.token, accept_match(tree, target_token, DEPTH)
    # The mistake: drafts are accepted where they equal the argmax, and only the bonus is sampled.
    accepted = accept_match(tree, argmax(logits), DEPTH)
    last = jnp.take_along_axis(accepted.path, accepted.count[:, None] - 1, axis=1)
    return tree.token, accepted.replace(bonus=jnp.take_along_axis(target_token, last, axis=1)[:, 0])


def toy_decode(rule, shape, spec, values, seed, wanted=3):
    """First `wanted` tokens of SAMPLES sequences [SAMPLES, wanted], and the mean tokens of the
    first round.
    """
    keys = sequence_keys(seed, jnp.arange(SAMPLES, dtype=jnp.uint32))
    root, position = jnp.full(SAMPLES, START), jnp.full(SAMPLES, POSITION)
    tokens, emitted, lengths = np.zeros((SAMPLES, wanted), int), np.zeros(SAMPLES, int), []
    for _ in range(wanted):
        tree_token, accepted = toy_round(
            root, position, keys, values, rule=rule, shape=shape, spec=spec
        )
        count, bonus = np.asarray(accepted.count), np.asarray(accepted.bonus)
        drafted = np.take_along_axis(np.asarray(tree_token), np.asarray(accepted.path), axis=1)[
            :, 1:
        ]
        for j in range(DEPTH + 1):
            token = bonus if j == DEPTH else np.where(j == count - 1, bonus, drafted[:, j])
            live = (j < count) & (emitted + j < wanted)
            tokens[live, (emitted + j)[live]] = token[live]
        emitted, lengths = emitted + count, [*lengths, count.mean()]
        root, position = accepted.bonus, position + accepted.count
    return tokens, lengths[0]


def processed(spec, values):
    return np.asarray(jax.nn.softmax(process(TARGET, spec, values), axis=-1), np.float64)


def p_value(tokens, spec, values):
    """Chi-square test of the joint distribution of three tokens; cells with fewer than 5 expected
    are merged.
    """
    transition = processed(spec, values)
    joint = transition[START][:, None, None] * transition[:, :, None] * transition[None]
    expected = joint.ravel() * len(tokens)
    cell = (tokens * [VOCAB**2, VOCAB, 1]).sum(-1)
    observed = np.bincount(cell, minlength=VOCAB**3)
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    used = expected > 0
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return float(scipy.stats.chi2.sf(statistic, used.sum() - 1))


@pytest.mark.parametrize(
    ("rule", "shape", "top_p"),
    slow_except(
        [("coupled", "tree", 0.8), ("sequential", "tree", None)],
        [
            (rule, *drawn)
            for rule in ("match", "coupled", "sequential", "rejection")
            for drawn in (("chain", None), ("tree", None), ("tree", 0.8))
        ],
    ),
)
def test_output_has_the_target_distribution(rule, shape, top_p):
    spec, values = make_sampling(0.9, top_p=top_p)
    tokens, length = toy_decode(rule, shape, spec, values, seed=17)
    assert length > 1.1
    assert p_value(tokens, spec, values) > 1e-3


@pytest.mark.parametrize("shape", slow_except(["tree"], ["chain", "tree"]))
def test_argmax_matching_does_not_have_it(shape):
    spec, values = make_sampling(0.9)
    tokens, _ = toy_decode("argmax", shape, spec, values, seed=17)
    assert p_value(tokens, spec, values) < 1e-9


@pytest.mark.parametrize("shape", slow_except(["tree"], ["chain", "tree"]))
def test_matched_text_does_not_depend_on_the_draft(shape):
    spec, values = make_sampling(0.9)
    plain, _ = toy_decode("match", shape, spec, values, seed=5)
    coupled, _ = toy_decode("coupled", shape, spec, values, seed=5)
    np.testing.assert_array_equal(plain, coupled)


def first_acceptance(rule, shape, spec, values):
    keys = sequence_keys(2, jnp.arange(SAMPLES, dtype=jnp.uint32))
    root, position = jnp.full(SAMPLES, START), jnp.full(SAMPLES, POSITION)
    _, accepted = toy_round(root, position, keys, values, rule=rule, shape=shape, spec=spec)
    return float((accepted.count > 1).mean())


def test_acceptance_rates_are_those_of_the_theory():
    spec, values = make_sampling(0.9)
    error = 4 * 0.5 / np.sqrt(SAMPLES)
    p, scores = processed(spec, values)[START], DRAFTER[START, 0]
    q = np.asarray(jax.nn.softmax(process(scores, spec, values)), np.float64)
    assert (
        abs(first_acceptance("rejection", "chain", spec, values) - np.minimum(p, q).sum()) < error
    )
    ranked = p[np.argsort(-scores)]
    assert abs(first_acceptance("sequential", "chain", spec, values) - ranked[0]) < error
    assert abs(first_acceptance("sequential", "tree", spec, values) - ranked[:3].sum()) < error


def test_both_rules_are_matching_when_greedy():
    rng = np.random.default_rng(3)
    trees = stack([make_tree(rng.integers(0, 4, 9), SHAPES["tree"][0]) for _ in range(16)])
    logits, q = jnp.asarray(rng.normal(size=(16, 9, 4)), jnp.float32), jnp.zeros((16, 3, 4))
    keys, position = sequence_keys(0, jnp.arange(16, dtype=jnp.uint32)), jnp.full(16, 4)
    spec, values = make_sampling(0.0)

    @jax.jit
    def every_rule(trees, logits):
        sequential = accept_sequential(trees, logits, spec, values, keys, position, 3)
        rejection = accept_rejection(trees, logits, q, spec, values, keys, position, 3)
        return accept_match(trees, argmax(logits), 3), sequential, rejection

    match, *others = every_rule(trees, logits)
    assert len(set(match.count.tolist())) > 1
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, other, match)
    candidates, logprob = sample_candidates(logits[:, :3], 2, spec, values, keys, position)
    np.testing.assert_array_equal(candidates.token[..., 0], np.argmax(logits[:, :3], -1))
    np.testing.assert_array_equal(candidates.logprob, jax.lax.top_k(logprob, 2)[0])


def test_candidates_are_drawn_without_replacement_and_scored_by_rank():
    logits = jnp.asarray(DRAFTER[START])
    spec, values = make_sampling(0.9, top_k=4)
    keys = sequence_keys(9, jnp.arange(SAMPLES, dtype=jnp.uint32))
    many = jnp.broadcast_to(logits, (SAMPLES, *logits.shape))
    out, logprob = jax.jit(sample_candidates, static_argnums=(1, 2))(
        many, 5, spec, values, keys, jnp.full(SAMPLES, 7)
    )
    assert np.isneginf(out.logprob[..., 4]).all()
    rank = np.arange(4)
    np.testing.assert_allclose(
        out.logprob[5, 1, :4], np.log(1 - RANK_DECAY) + rank * np.log(RANK_DECAY), rtol=1e-6
    )
    assert (np.asarray(out.logprob) == np.asarray(out.logprob)[:1, :1]).all()
    q = np.exp(np.asarray(logprob[0], np.float64))
    for depth in range(DEPTH):
        token = np.asarray(out.token[:, depth])
        assert (np.sort(token[:, :4]) == np.flatnonzero(q[depth])).all()
        pairs = np.zeros((VOCAB, VOCAB))
        np.add.at(pairs, (token[:, 0], token[:, 1]), 1)
        expected = q[depth][:, None] * q[depth] / (1 - q[depth][:, None]) * (1 - np.eye(VOCAB))
        error = np.sqrt(SAMPLES * expected * (1 - expected))
        assert (np.abs(pairs - SAMPLES * expected) <= 4.5 * error + 1e-3).all()


def test_rules_draw_apart_from_the_shared_noise():
    """No bits of the rules' noise are those of a position's Gumbel noise, or of another round."""
    from jaxspec.acceptance.path import ACCEPT, BONUS, CANDIDATES, fold_round_keys
    from jaxspec.core.sampling.noise import fold_in, random_bits

    keys = sequence_keys(0, jnp.arange(2, dtype=jnp.uint32))
    streams = [random_bits(fold_in(keys, jnp.full(2, p)), 64) for p in range(5)]
    for purpose in (ACCEPT, BONUS, CANDIDATES):
        streams += [
            random_bits(fold_round_keys(keys, jnp.full(2, p), purpose), 64) for p in range(5)
        ]
    bits = np.concatenate([np.ravel(stream) for stream in streams])
    assert len(np.unique(bits)) >= bits.size - 2
    assert uniform(keys, 3).dtype == jnp.float32
