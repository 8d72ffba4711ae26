"""Whole rounds of TreeFlash: the authors' trees node for node, and their decode runs."""

import dataclasses

import numpy as np
import pytest
from golden_data import arrays, golden, records
from slow_cases import mark_thorough, slow_except
from treeflash_golden import load_treeflash, seen_of, settings_of, trees_at

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies import make_named

golden("treeflash")
TREES = [one for one in records("treeflash", "trees_index.json") if one["tree"] is not None]
RUNS = records("treeflash", "decode.json")


def key_of(case):
    settings = settings_of(case | {"drafter_temperature": case.get("temperature", 1.0)})
    return case["model"], tuple(settings.items())


GROUPS = sorted({key_of(case) for case in TREES})
# Small trees, trees that run dry, and trees without a correction; each compiles a program.
QUICK = [group for group in GROUPS if dict(group[1])["rows"] in (16, 24)]


@pytest.mark.parametrize(
    ("model", "settings"), mark_thorough(QUICK[::3], slow_except(QUICK, GROUPS))
)
def test_trees(model, settings):
    cases = [case for case in TREES if key_of(case) == (model, settings)]
    trees = trees_at(model, [case["context"] for case in cases], **dict(settings))
    stored = arrays("treeflash", "trees.npz")
    for i, case in enumerate(cases):
        used = case["used_nodes"]
        token, mask, depth = (
            stored[f"t{case['tree']}_{name}"] for name in ("tokens", "mask", "depths")
        )
        assert trees.size[i] == used
        assert trees.token[i, 0] == case["context"][-1]
        np.testing.assert_array_equal(trees.token[i, 1:used], token[1:used])
        np.testing.assert_array_equal(trees.depth[i, :used], depth[:used])
        np.testing.assert_array_equal(seen_of(trees, i)[:used, :used], mask[:used, :used])


def options_of(run):
    if run.get("is_chain"):
        return {"builder": "chain", "budget": 8}
    children = run.get("top_k", 16)
    return {"builder": f"lattice/candidates={children}", "budget": size_of(run)}


def size_of(run):
    """Rows of a run's trees; its default is what the drafter's files say."""
    return run.get("tree_size") or load_treeflash().spec.drafter("treeflash").candidate_tokens


GREEDY = [run for run in RUNS if run["temperature"] == 0]
TREE_RUNS = [run for run in GREEDY if run["rounds"] and not run.get("is_chain")]


def name_of(run):
    return f"{run['model']}-{run.get('tree_size', 'default')}-{len(run['prompt'])}"


@pytest.mark.parametrize("run", slow_except(TREE_RUNS[:1], TREE_RUNS), ids=name_of)
def test_greedy_runs_round_for_round(run):
    params = load_treeflash(run["model"], run.get("top_m", 16))
    stop = run["stop_token_ids"] or ()
    options = dict(max_new_tokens=run["max_new_tokens"], stop=stop, trace=True, drafter="treeflash")
    out = jaxspec.decode(params, run["prompt"], **group_options(**options, **options_of(run)))
    wanted = run["output_ids"][len(run["prompt"]) :]
    assert out.tokens == wanted
    lengths = run["acceptance_lengths"]
    left = len(wanted) - 1 - np.cumsum([0, *lengths[:-1]])
    theirs = np.minimum(lengths, left)
    assert [len(step.path) for step in out.rounds] == theirs[theirs > 0].tolist()
    for step, recorded in zip(out.rounds, run["rounds"], strict=False):
        used = recorded["mask_used"]
        used = used if isinstance(used, int) else int(np.sum(used))
        assert step.tree.token[1:used].tolist() == recorded["draft"][: used - 1]
        assert step.tree.parent[1:used].tolist() == recorded["parents"][1:used]


SAMPLED = [
    run for run in RUNS if run["temperature"] > 0 and run["rounds"] and not run.get("is_chain")
]


@pytest.mark.parametrize("run", slow_except(SAMPLED[:1], SAMPLED), ids=name_of)
def test_sampled_runs_given_the_targets_choices(run):
    """The recorded choices of the target decide what is accepted; the drafts and paths follow."""
    settings = settings_of(run | {"tree_size": size_of(run)})
    text, contexts = [*run["prompt"], run["first_token"]], []
    for step in run["rounds"]:
        contexts.append(list(text))
        nodes = [step["posterior"][row] for row in step["accepted_nodes"]]
        text += nodes
    trees = trees_at(run["model"], contexts, **settings)
    for i, step in enumerate(run["rounds"]):
        size, posterior = trees.size[i], step["posterior"]
        token, parent = trees.token[i, :size], trees.parent[i, :size]
        assert token[1:].tolist() == step["draft"][: size - 1]
        accepted = [True]
        for row in range(1, size):
            accepted.append(bool(accepted[parent[row]] and token[row] == posterior[parent[row]]))
        depth = np.where(accepted, trees.depth[i, :size], -1)
        best, path = int(depth.argmax()), []
        while best >= 0:
            path.append(best)
            best = int(parent[best])
        assert path[::-1] == step["accepted_nodes"]


@pytest.mark.thorough
def test_runs_without_a_round():
    for run in GREEDY:
        if not run["rounds"]:
            out = jaxspec.decode(
                load_treeflash(run["model"]),
                run["prompt"],
                drafter="treeflash",
                max_new_tokens=run["max_new_tokens"],
                stop=run["stop_token_ids"] or (),
            )
            assert out.tokens == run["output_ids"][len(run["prompt"]) :]


COSTS = make_costs((1, 16), (0,), 0.5, [[1.0], [1.05]])
PROMPTS = [run["prompt"] for run in RUNS[:3]]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="greedy", marks=pytest.mark.thorough),
        pytest.param({"temperature": 1.0, "seed": 3}, id="sampled"),
        *(
            pytest.param(options, id=name, marks=pytest.mark.slow)
            for name, options in {
                "uncoupled": {"temperature": 1.0, "seed": 3, "coupled": False},
                "filters": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 1},
                "penalties": {"frequency_penalty": 0.5, "temperature": 1.0, "seed": 1},
                "lookup": {"lookup": True},
                "sequential": {"acceptance": "sequential"},
                "svip": {"policy": make_named("svip-paper", lambda: COSTS)},
                "best": {"policy": make_named("best", lambda: COSTS)},
                "chain": {"builder": "chain", "temperature": 1.0, "seed": 2},
                "dynamic": {"builder": "dynamic/w4"},
            }.items()
        ),
    ],
)
def test_the_text_is_the_targets(more):
    params = load_treeflash()
    same = {name: more[name] for name in ("temperature", "seed") if name in more}
    same |= {name: x for name, x in more.items() if name in ("top_k", "top_p", "frequency_penalty")}
    options = dict(max_new_tokens=24, **same)
    plain = jaxspec.decode(params, PROMPTS, **group_options(drafter="ar", **options))
    options |= {name: x for name, x in more.items() if name not in same}
    outs = jaxspec.decode(
        params, PROMPTS, **group_options(drafter="treeflash", budget=16, **options)
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert sum(out.stats.rounds for out in outs) < sum(len(out.tokens) - 1 for out in outs)


@pytest.mark.slow
def test_sampled_trees_are_ranked_under_the_noise():
    """But conditions are chosen without it: with few of them, it would leave the likely ones out."""
    params = load_treeflash("swiglu", 4)
    options = dict(max_new_tokens=40, temperature=0.6, drafter="treeflash", budget=16)
    rounds = [
        sum(
            out.stats.rounds
            for seed in range(3)
            for out in jaxspec.decode(
                params, PROMPTS, **group_options(**options, seed=seed, coupled=coupled)
            )
        )
        for coupled in (True, False)
    ]
    assert rounds[0] < rounds[1]


def test_the_default_tree_is_the_authors():
    config = load_treeflash().spec.drafter("treeflash")
    assert config.builder == "lattice/candidates=16" and config.conditions == 16
    assert dataclasses.replace(config, candidate_tokens=3) == config
