import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import records
from slow_cases import slow_except

from jaxspec.builders import Proposes, expand, fanout
from jaxspec.builders.scores import NEVER, make_score, step_costs
from jaxspec.builders.trees.expand import build_expand
from jaxspec.builders.trees.expansion import expand_levels, expand_pops
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate

INDEX = records("jetspec", "trees_index.json")
BUDGETS = sorted({tree["budget"] for tree in INDEX["current"]})


def caps_of(algorithm: str, knobs: dict, build: dict, logprob: np.ndarray) -> np.ndarray:
    """Caps by the rule that made a golden tree."""
    depth, width = logprob.shape
    profile, prompt = build.get("profile_table", {}), build.get("prompt_info", {})
    if algorithm == "accum_logp" or knobs.get("force_baseline"):
        return np.full(depth, width, np.int32)
    if algorithm == "top2gap_fanout":
        return fanout.top2gap(logprob, knobs.get("beta", 1.0), knobs.get("g_0", 1.0))
    if algorithm == "depth_rank_histogram":
        return fanout.rank_histogram(
            logprob, profile.get("depth_rank_accept"), knobs.get("tau", 0.02)
        )
    if algorithm == "task_router":
        return fanout.task_router(logprob, prompt.get("task"))
    if algorithm == "class_histogram":
        return fanout.class_histogram(
            logprob, profile.get("per_class_histograms", {}), prompt.get("task")
        )
    assert algorithm == "reasoning_router"
    return fanout.reasoning_router(
        logprob, fanout.looks_like_reasoning(prompt.get("text", ""), prompt.get("task", ""))
    )


def rule_of(tree: dict) -> str:
    """What decides the caps of a golden tree; the budget does not."""
    return json.dumps([tree[what] for what in ("case", "algo", "algo_kwargs", "build_kwargs")])


@pytest.fixture(scope="module")
def golden_caps(jetspec):
    """Caps under every rule, by `rule_of`; one compilation for all."""
    trees = {rule_of(tree): tree for tree in jetspec.trees}

    def all_caps(logprobs):
        return {
            rule: caps_of(
                tree["algo"], tree["algo_kwargs"], tree["build_kwargs"], logprobs[tree["case"]]
            )
            for rule, tree in trees.items()
        }

    return jax.jit(all_caps)({case: jetspec.candidates(case).logprob for case in jetspec.cases})


@pytest.mark.parametrize(
    ("budget", "pop"),
    slow_except(
        [(BUDGETS[0], expand_pops), (BUDGETS[1], expand_levels)],
        itertools.product(BUDGETS, (expand_pops, expand_levels)),
    ),
)
def test_equals_every_jetspec_tree_under_every_fanout_rule(
    jetspec, golden_caps, assert_tree, sorted_nodes, budget, pop, monkeypatch
):
    monkeypatch.setattr("jaxspec.builders.trees.expand.expand_pops", pop)
    trees = [tree for tree in jetspec.trees if tree["budget"] == budget]
    candidates = jetspec.stacked([tree["case"] for tree in trees])
    caps = np.zeros(candidates.token.shape[:2], np.int32)
    for b, tree in enumerate(trees):
        own = golden_caps[rule_of(tree)]
        caps[b, : len(own)] = own
    build = jax.jit(
        jax.vmap(
            lambda *args: build_expand(*args[:4], budget, args[4]), in_axes=(0, 0, None, None, 0)
        )
    )
    built = build(candidates.token, candidates.logprob, jnp.int32(7), jnp.int32(99), caps)
    validate(built)
    for b, tree in enumerate(trees):
        assert_tree(built, b, sorted_nodes(jetspec.expected(tree)), str(tree)[:200])


def caps_of_history(tree: dict, logprob: jax.Array, entropy: jax.Array) -> jax.Array:
    """Caps [D, K] by the rule that made a tree of JetSpec's history."""
    knobs, algorithm = tree["algo_kwargs"], tree["algo"]
    if algorithm in ("entropy_gate", "entropy_soft"):
        caps = getattr(fanout, algorithm)(
            logprob, entropy, *[knobs[k] for k in ("tau_low", "tau_high", "alpha") if k in knobs]
        )
    elif algorithm == "entropy_topk":
        caps = fanout.entropy_topk(logprob, knobs["tau_low"], knobs["tau_high"])
    elif algorithm == "top2gap_budget_gated":
        caps = fanout.top2gap(
            logprob, knobs["beta"], knobs["g_0"], np.exp(-tree["budget"] / knobs["B_0"])
        )
    else:
        caps = getattr(fanout, algorithm)(logprob, *knobs.values())
    return jnp.broadcast_to(caps if np.ndim(caps) == 2 else caps[:, None], logprob.shape)


@pytest.fixture(scope="module")
def history(historical):
    """Trees whose rule still exists, and the caps of each; one compilation for all."""
    skipped = (
        "entropy_score",
        "budget_blend",
        "drift_brake",
    )  # a score; a reward for depth; caps by the path's score
    trees = [tree for tree in historical.trees if tree["algo"] not in skipped]

    def all_caps(logprobs, entropies):
        return [
            caps_of_history(tree, logprobs[tree["case"]], entropies[tree["case"]]) for tree in trees
        ]

    logprobs = {case: historical.candidates(case).logprob for case in historical.cases}
    entropies = {
        case: historical.entropies([case], len(logprob))[0] for case, logprob in logprobs.items()
    }
    return list(zip(trees, jax.jit(all_caps)(logprobs, entropies), strict=True))


@pytest.mark.parametrize(
    ("budget", "pop"),
    slow_except([(64, expand_pops)], itertools.product((16, 64), (expand_pops, expand_levels))),
)
def test_equals_trees_of_jetspecs_history(
    historical, history, assert_tree, sorted_nodes, budget, pop, monkeypatch
):
    monkeypatch.setattr("jaxspec.builders.trees.expand.expand_pops", pop)
    trees = [(tree, caps) for tree, caps in history if tree["budget"] == budget]
    assert trees
    candidates = historical.stacked([tree["case"] for tree, _ in trees])
    all_caps = np.zeros(candidates.token.shape, np.int32)
    for b, (_, caps) in enumerate(trees):
        all_caps[b, : caps.shape[0], : caps.shape[1]] = caps
    build = jax.jit(
        jax.vmap(
            lambda *args: build_expand(*args[:4], budget, args[4]), in_axes=(0, 0, None, None, 0)
        )
    )
    built = build(candidates.token, candidates.logprob, jnp.int32(7), jnp.int32(99), all_caps)
    validate(built)
    for b, (tree, _) in enumerate(trees):
        assert_tree(built, b, sorted_nodes(historical.expected(tree)), str(tree)[:200])


@pytest.mark.parametrize("rule", ("entropy_gate", "rank_decay"))
def test_builder_calls_rules_of_entropy_and_of_rank(rule):
    builder = expand(3, rule).bind(Proposes(3, 3, 9, 20))
    assert builder.entropy == (rule == "entropy_gate")
    logprob = np.log(np.tile(np.array([0.6, 0.2, 0.1], np.float32), (2, 3, 1)))
    token = np.tile(np.arange(3, dtype=np.int32), (2, 3, 1))
    entropy = np.tile(np.array([[0.1], [9.0]], np.float32), (1, 3))
    built = jax.jit(builder.build)(
        Candidates(token, logprob, entropy), jnp.array([5, 6]), jnp.array([3, 3])
    )
    validate(built)
    # Chains from the root; or 3, 2 and 1 children (3 * 0.5 is 1.5: half to even) by rank: 1 + 3 + 6
    # + 11 rows fill the budget.
    assert built.size.tolist() == {"entropy_gate": [20, 4], "rank_decay": [20, 20]}[rule]


@pytest.mark.parametrize(
    ("case", "budget"),
    [("one_1x32", 64), ("flat_7x64", 64), ("width1_5x64", 16), ("ties_6x40", 255)],
)
def test_builder_equals_accum_logp_at_its_own_shape(
    jetspec, assert_tree, sorted_nodes, case, budget
):
    tree = next(
        t
        for t in jetspec.trees
        if (t["case"], t["budget"], t["algo"]) == (case, budget, "accum_logp")
    )
    depth, vocab = jetspec.logits(case).shape
    builder = expand(tree["tree_width"]).bind(Proposes(depth, depth, vocab, budget))
    candidates = jax.tree.map(lambda x: x[None], jetspec.candidates(case))
    built = jax.jit(builder.build)(candidates, jnp.array([7]), jnp.array([depth]))
    assert built.token.shape == (1, tree["n"]) == (1, builder.rows)
    assert int(built.depth.max()) <= builder.longest
    assert_tree(built, 0, sorted_nodes(jetspec.expected(tree)))


def test_unusable_candidates_and_depths_are_left_out():
    builder = expand(3).bind(Proposes(3, 3, 9, 9))
    logprob = np.log(np.tile(np.array([0.6, 0.2, 0.1], np.float32), (2, 3, 1)))
    logprob[0, :, 1:] = -np.inf
    token = np.tile(np.arange(3, dtype=np.int32), (2, 3, 1))
    built = jax.jit(builder.build)(Candidates(token, logprob), jnp.array([5, 6]), jnp.array([3, 1]))
    validate(built)
    assert built.size.tolist() == [4, 4]
    assert built.depth[:, :4].tolist() == [[0, 1, 2, 3], [0, 1, 1, 1]]


def test_ties_are_popped_in_order_of_insertion():
    """(2) and (0, 0) both score -2: (2) was inserted first, though its rank path comes later."""
    steps = np.array([[-1.0, -1.5, -2.0], [-1.0, -1.5, -2.0], [-5.0, -6.0, -7.0]], np.float32)
    token = np.tile(np.arange(3, dtype=np.int32), (3, 1))
    # Pops so far: the root, (0), (1). Room for three more: the children of the fourth.
    tree = jax.jit(build_expand, static_argnums=4)(token, steps, jnp.int32(0), jnp.int32(3), 13)
    paths = [()]
    for row in range(1, 13):
        paths.append((*paths[int(tree.parent[row])], int(tree.token[row])))
    assert {path[:-1] for path in paths[1:]} == {(), (0,), (1,), (2,)}


@pytest.mark.parametrize(
    ("depth", "width", "rows", "caps"),
    slow_except(
        [(6, 3, 33, "by rank"), (4, 5, 12, "by depth"), (1, 3, 3, "no rule"), (3, 2, 2, "by rank")],
        [
            (*shape, caps)
            for shape in ((6, 3, 33), (4, 5, 12), (1, 3, 3), (3, 2, 2))
            for caps in ("no rule", "by depth", "by rank")
        ],
    ),
)
def test_levels_pop_the_nodes_that_single_pops_do(depth, width, rows, caps):
    """Ties of costs, free steps, missing candidates and depth limits included."""
    batch, rng = 200, np.random.default_rng(depth)
    logprob = -rng.exponential(2, (batch, depth, width)).astype(np.float32)
    logprob[::4] = np.round(logprob[::4])
    logprob[1::4] *= rng.random(logprob[1::4].shape) < 0.5
    logprob[2::4][rng.random(logprob[2::4].shape) < 0.3] = -np.inf
    logprob = -np.sort(-logprob, axis=-1)
    limit = np.where(np.arange(batch) % 3, depth, rng.integers(0, depth + 1, batch))
    entropy = np.round(rng.exponential(1, (batch, depth))).astype(np.float32)
    shape = {"no rule": (), "by depth": (depth,), "by rank": (depth, width)}[caps]
    most = rng.integers(1, width + 1, (batch, *shape)).astype(np.int32)
    score = make_score("logprob" if caps == "by depth" else "hybrid", None)

    def both(logprob, limit, entropy, most):
        steps = step_costs(score, logprob, entropy, limit)
        counts = jnp.sum(steps.hi != NEVER, axis=1, dtype=jnp.int32)
        if most.ndim:
            counts = jnp.minimum(counts[:, None] if most.ndim == 2 else counts, most)
        counts = jnp.concatenate([counts, jnp.zeros_like(counts[:1])])
        popped = expand_pops(steps, counts, rows)
        live = jnp.arange(rows) < popped.size
        trees = popped, expand_levels(steps, counts, rows)
        return jax.tree.map(lambda x: jnp.where(live, x, 0), trees)

    popped, levels = jax.jit(jax.vmap(both))(logprob, limit.astype(np.int32), entropy, most)
    assert len(np.unique(popped.size)) > 1 or rows < 4
    jax.tree.map(np.testing.assert_array_equal, popped, levels)
