"""Whole rounds of EAGLE-3: dynamic trees, greedy texts and sampled acceptance of the authors' own
decode loop.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import golden, load_eagle, records, target_of

import jaxspec
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

pytestmark = pytest.mark.slow
TREES, GREEDY, SAMPLED = (
    records("eagle3", f"{name}.json") for name in ("trees", "trace_greedy", "trace_sampling")
)
# (rows, forwards after the first, width) as the authors count them; our depth counts levels, one
# more.
NAMES = ("total_token", "depth", "top_k")


def sizes_of(cases):
    return sorted({tuple(case["config"][name] for name in NAMES) for case in cases})


@pytest.fixture(scope="module")
def eagle():
    return load_eagle(target_of("eagle3"), golden("eagle3", "draft"))


def cases_of(cases, size):
    return [
        case
        for case in cases
        if tuple(case["config"][name] for name in ("total_token", "depth", "top_k")) == size
    ]


def paths(tokens, parents) -> list[tuple[int, ...]]:
    """Every node by the tokens that lead to it from the root; the authors' trees have the same
    nodes in another order.
    """
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    assert len(set(found)) == len(found)
    return found


def round_at(eagle, contexts, size):
    """(trees, target logits [B, N, V] after their rows) of a round whose committed texts, the root
    included, are given.
    """
    rows, depth, width = size
    sampling, values = make_sampling()
    config = DecodeConfig("eagle3", sampling, dynamic(width), budget=rows, depth=depth + 1)
    length = np.array([len(context) for context in contexts])
    tokens = np.stack([np.pad(context, (0, max(length) - len(context))) for context in contexts])

    @jax.jit
    def run(tokens, length):
        batch, count = tokens.shape
        none = np.zeros(batch, np.int32)
        request = Request(none, none, 0, none.astype(np.uint32), values)
        round = make_round(eagle, request, config)
        plan = round.plan
        place = jnp.broadcast_to(jnp.arange(count), tokens.shape)
        out = plan.target.apply(
            eagle.target, tokens, place, feature_layers=plan.drafter.feature_layers
        )
        pairs = Committed(
            tokens[:, :-1], tokens[:, 1:], out.features[:, :-1], place[:, 0], length - 1
        )
        start = plan.drafter.init(batch, count, jnp.float32)
        state = plan.drafter.absorb(eagle.drafters["eagle3"], start, round.target_head, pairs)
        cache = append(
            allocate(eagle.spec.target, batch, count, jnp.float32), out.k, out.v, length - 1
        )
        root = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
        session = SimpleNamespace(root=root, done=length < 0, draft=state, cache=cache, block=None)
        tree = grow(round, session, draft(round, session, None))
        out = plan.target.apply(
            eagle.target, tree.token, cache.length[:, None] + tree.depth, cache, tree.ancestors
        )
        return tree, plan.target.apply(eagle.target, out.hidden, method="logits")

    return jax.tree.map(np.asarray, run(tokens.astype(np.int32), length))


@pytest.mark.parametrize("size", sizes_of(TREES))
def test_dynamic_trees(eagle, size):
    cases = [case for case in cases_of(TREES, size) if not case["config"]["retrieve_sorted"]]
    trees, _ = round_at(eagle, [case["context"] for case in cases], size)
    for case, tokens, parents, depths in zip(
        cases, trees.token, trees.parent, trees.depth, strict=True
    ):
        found, wanted = paths(tokens, parents), paths(case["tokens"], case["parents"])
        assert set(found) == set(wanted)
        assert dict(zip(found, depths, strict=True)) == dict(
            zip(wanted, case["position_ids"], strict=True)
        )


@pytest.mark.parametrize("size", sizes_of(GREEDY))
def test_greedy_texts_round_for_round(eagle, size):
    cases, (rows, depth, width) = cases_of(GREEDY, size), size
    options = dict(
        drafter="eagle3",
        builder=dynamic(width),
        budget=rows,
        depth=depth + 1,
        trace=True,
    )
    longest = max(len(case["output_ids"]) for case in cases)
    outputs = jaxspec.decode(
        eagle,
        [case["prompt"] for case in cases],
        max_new_tokens=longest + depth,
        **group_options(**options),
    )
    for case, output in zip(cases, outputs, strict=True):
        assert list(output.tokens)[: len(case["output_ids"])] == case["output_ids"]
        rounds = list(zip(case["iterations"], output.rounds, strict=False))
        assert len(rounds) == len(case["iterations"])
        for wanted, found in rounds[:-1]:  # the authors may cut the last round
            tree = paths(found.tree.token, found.tree.parent)
            assert set(tree) == set(paths(wanted["tree"]["tokens"], wanted["tree"]["parents"]))
            assert [int(found.tree.token[row]) for row in found.path] == wanted["committed"]
            assert int(found.bonus) == wanted["next_root"]


def draws_of(tokens, parents, accepted, uniforms):
    """The authors' uniform draws by row of our tree: an accepted row's children are tried in order,
    one draw for each.
    """
    draws, left = np.full(len(tokens), 0.5, np.float32), list(uniforms)
    row = 0
    for token in [*accepted, None]:
        for child in np.flatnonzero(parents == row):
            draws[child] = left.pop(0)
            if tokens[child] == token:
                row = child
                break
    assert not left
    return draws


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: f"T{case['temperature']}")
def test_sampled_rounds_accept_the_same_path(eagle, case):
    """EAGLE-3's trees do not depend on the temperature; its rule, given its draws, walks down them
    as it did.
    """
    texts, contexts = list(case["prompt"]), []
    for wanted in case["iterations"]:
        contexts.append([*texts, wanted["committed"][0]])
        texts += wanted["committed"]
    size = tuple(case["config"][name] for name in ("total_token", "depth", "top_k"))
    trees, logits = round_at(eagle, contexts, size)
    spec, values = make_sampling(case["temperature"], case["top_k"] or None, case["top_p"] or None)
    walk = jax.jit(
        functools.partial(walk_sequential, spec=spec, values=values, longest=size[1] + 1)
    )
    for i, wanted in enumerate(case["iterations"]):
        tree = jax.tree.map(lambda array, i=i: array[i], trees)
        assert set(paths(tree.token, tree.parent)) == set(
            paths(wanted["tree"]["tokens"], wanted["tree"]["parents"])
        )
        draws = draws_of(tree.token, tree.parent, wanted["committed"][1:], wanted["uniforms"])
        accepted, left = walk(tree, logits[i], draws)
        assert [int(tree.token[row]) for row in accepted.path[: accepted.count]] == wanted[
            "committed"
        ]
        assert left[wanted["next_root"]] > 0
