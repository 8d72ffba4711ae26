"""Whole rounds of GRIFFIN: the trees, greedy texts, sampled rounds and acceptance of the authors'
own decode loop.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, records
from griffin_golden import load_griffin
from slow_cases import mark_thorough
from verify_trees import make_tree, stack

import jaxspec
from jaxspec.acceptance import accept_match
from jaxspec.acceptance.sequential import walk_sequential
from jaxspec.builders import dynamic
from jaxspec.call.options import group_options
from jaxspec.core.cache import allocate, append
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import Request
from jaxspec.drafters.base import Committed
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.plan import DecodeConfig

golden("griffin")
TREES, GREEDY, SAMPLED = (
    records("griffin", f"{name}.json") for name in ("trees", "trace_greedy", "trace_sampling")
)


def size_of(case):
    """(rows, forwards after the first, width) as the authors count them; our depth is one more."""
    return case["total_token"], case["depth"], case.get("draft_top_k", case["top_k"])


def sizes_of(cases):
    """Sizes, of which the largest takes many seconds to compile."""
    sizes = sorted({size_of(case) for case in cases})
    return [pytest.param(size, marks=[pytest.mark.thorough] * (size != sizes[0])) for size in sizes]


def paths(tokens, parents):
    """Every node by the tokens that lead to it from the root; the authors' trees have the same
    nodes in another order.
    """
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    assert len(set(found)) == len(found)
    return found


def round_at(params, contexts, size):
    """(trees, target logits [B, N, V] after their rows) of a round whose committed texts, the root
    included, are given.
    """
    rows, depth, width = size
    sampling, values = make_sampling()
    config = DecodeConfig("griffin", sampling, dynamic(width), budget=rows, depth=depth + 1)
    length = np.array([len(context) for context in contexts])
    tokens = np.stack([np.pad(context, (0, max(length) - len(context))) for context in contexts])

    @jax.jit
    def run(tokens, length):
        batch, count = tokens.shape
        none = np.zeros(batch, np.int32)
        request = Request(none, none, 0, none.astype(np.uint32), values)
        round = make_round(params, request, config)
        plan, place = round.plan, jnp.broadcast_to(jnp.arange(count), tokens.shape)
        layers = plan.drafter.feature_layers
        out = plan.target.apply(params.target, tokens, place, feature_layers=layers)
        pairs = Committed(
            tokens[:, :-1], tokens[:, 1:], out.features[:, :-1], place[:, 0], length - 1
        )
        start = plan.drafter.init(batch, count, jnp.float32)
        state = plan.drafter.absorb(params.drafters["griffin"], start, round.target_head, pairs)
        cache = allocate(params.spec.target, batch, count, jnp.float32)
        cache = append(cache, out.k, out.v, length - 1)
        root = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
        session = SimpleNamespace(root=root, done=length < 0, draft=state, cache=cache, block=None)
        tree = grow(round, session, draft(round, session, None))
        place = cache.length[:, None] + tree.depth
        out = plan.target.apply(params.target, tree.token, place, cache, tree.ancestors)
        return tree, plan.target.apply(params.target, out.hidden, method="logits")

    return jax.tree.map(np.asarray, run(tokens.astype(np.int32), length))


@pytest.mark.parametrize("size", sizes_of(TREES))
def test_dynamic_trees(size):
    cases = [case for case in TREES if size_of(case) == size]
    trees, _ = round_at(load_griffin(), [case["context"] for case in cases], size)
    for case, *found in zip(cases, trees.token, trees.parent, trees.depth, strict=True):
        ours, theirs = paths(*found[:2]), paths(case["tokens"], case["parents"])
        assert dict(zip(ours, found[2].tolist(), strict=True)) == dict(
            zip(theirs, case["position_ids"], strict=True)
        )


@pytest.mark.parametrize("size", sizes_of(GREEDY))
def test_greedy_texts_round_for_round(size):
    cases, (rows, depth, width) = [case for case in GREEDY if size_of(case) == size], size
    options = dict(drafter="griffin", builder=dynamic(width), budget=rows, depth=depth + 1)
    longest = max(len(case["output_ids"]) for case in cases)
    outputs = jaxspec.decode(
        load_griffin(),
        [case["prompt"] for case in cases],
        max_new_tokens=longest + depth,
        **group_options(**options, trace=True),
    )
    for case, output in zip(cases, outputs, strict=True):
        wanted = case["output_ids"][len(case["prompt"]) :]
        assert list(output.tokens)[: len(wanted)] == wanted
        rounds = list(zip(case["iterations"], output.rounds, strict=False))
        assert len(rounds) == len(case["iterations"])
        for theirs, ours in rounds:
            tree = theirs["tree"]
            found = set(paths(ours.tree.token, ours.tree.parent))
            assert found == set(paths(tree["tokens"], tree["parents"]))
            assert [int(ours.tree.token[row]) for row in ours.path] == theirs["committed"]
            assert int(ours.bonus) == theirs["next_root"]


def draws_of(tokens, parents, accepted, uniforms):
    """The authors' uniform draws by row of our tree: an accepted row's children are tried in order,
    one draw for each.
    """
    draws, left, row = np.full(len(tokens), 0.5, np.float32), list(uniforms), 0
    for token in [*accepted, None]:
        for child in np.flatnonzero(np.asarray(parents) == row):
            draws[child] = left.pop(0)
            if tokens[child] == token:
                row = child
                break
    assert not left
    return draws


@pytest.mark.parametrize(
    "case",
    mark_thorough([one for one in SAMPLED if one["temperature"] != 1], SAMPLED),
    ids=lambda case: f"T{case['temperature']}",
)
def test_sampled_rounds_accept_the_same_path(case):
    """Trees do not depend on the temperature; the rule, given the draws, walks down as theirs."""
    text, contexts = list(case["prompt"]), []
    for wanted in case["iterations"]:
        contexts.append([*text, wanted["committed"][0]])
        text += wanted["committed"]
    size = size_of(case)
    trees, logits = round_at(load_griffin(), contexts, size)
    spec, values = make_sampling(case["temperature"], case["top_k"] or None, case["top_p"] or None)
    walk = functools.partial(walk_sequential, spec=spec, values=values, longest=size[1] + 1)
    walk = jax.jit(walk)
    for i, wanted in enumerate(case["iterations"]):
        tree, theirs = jax.tree.map(lambda array, i=i: array[i], trees), wanted["tree"]
        found = set(paths(tree.token, tree.parent))
        assert found == set(paths(theirs["tokens"], theirs["parents"]))
        draws = draws_of(tree.token, tree.parent, wanted["committed"][1:], wanted["uniforms"])
        accepted, left = walk(tree, logits[i], draws)
        path = accepted.path[: accepted.count]
        assert [int(tree.token[row]) for row in path] == wanted["committed"]
        # At a leaf the authors draw the bonus without temperature and filters: any token.
        if (tree.parent == int(path[-1])).any():
            assert left[wanted["next_root"]] > 0


def warp(logits, case):
    """Temperature, then top-p, then top-k, as the authors do it; logits here have no ties."""
    logits = logits / case["temperature"]
    ranked = np.sort(logits, axis=-1)[:, ::-1]
    mass = np.cumsum(np.exp(ranked), axis=-1)
    keep = np.ones_like(logits, bool)
    if case["top_p"]:
        last = (mass < case["top_p"] * mass[:, -1:]).sum(-1, keepdims=True)
        keep = logits >= np.take_along_axis(ranked, last, axis=-1)
    if case["top_k"]:
        keep &= logits >= ranked[:, case["top_k"] - 1 : case["top_k"]]
    return np.where(keep, logits, -np.inf)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_acceptance_cases():
    """Paths are theirs, and so is the law of the bonus, except where they forget temperature and
    filters: after a path that ended without a rejection.
    """
    cases, found = records("griffin", "accept_cases.json"), arrays("griffin", "accept_cases.npz")
    rows = max(len(case["tokens"]) for case in cases)
    walk = jax.jit(functools.partial(walk_sequential, longest=rows - 1), static_argnames="spec")
    match = jax.jit(functools.partial(accept_match, longest=rows - 1))
    spec, values = make_sampling(1.0)
    compared = forgotten = 0
    for i, case in enumerate(cases):
        path = case["retrieve_indices"][case["best_candidate"]][: case["accept_length"] + 1]
        logits, law = found[f"case{i}_node_logits"], found[f"case{i}_sample_p"]
        nodes = list(zip(case["parents"], case["tokens"], strict=True))
        if len(set(nodes)) < len(nodes):  # equal siblings, which our trees merge
            continue
        tree = make_tree(case["tokens"], case["parents"], rows)
        if case["temperature"] == 0:
            best = np.pad(logits.argmax(-1), (0, rows - len(logits))).astype(np.int32)
            out = match(stack([tree]), best[None])
            assert out.path[0, : out.count[0]].tolist() == path
            assert int(out.bonus[0]) == law.argmax()
            continue
        accepted = [case["tokens"][row] for row in path[1:]]
        draws = draws_of(case["tokens"], case["parents"], accepted, case["uniforms"])
        draws = np.pad(draws, (0, rows - len(draws)), constant_values=0.5)
        warm = np.pad(warp(logits, case), ((0, rows - len(logits)), (0, 0))).astype(np.float32)
        out, left = walk(tree, warm, draws, spec=spec, values=values)
        assert out.path[: out.count].tolist() == path
        if path[-1] in case["parents"]:
            compared += 1
            np.testing.assert_allclose(left / left.sum(), law, atol=2e-6)
        else:
            forgotten += 1
            np.testing.assert_allclose(law, softmax(logits[path[-1]]), atol=2e-6)
    assert compared and forgotten
