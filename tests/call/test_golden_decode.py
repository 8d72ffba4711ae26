"""Greedy decode traces of the authors' own code, reproduced token for token with the same accepted
lengths.
"""

from contextlib import nullcontext

import numpy as np
import pytest
from golden_data import golden, records, target_of
from slow_cases import mark_thorough, slow_except

import jaxspec
from jaxspec.builders import expand, make_fanout
from jaxspec.builders.fanout import looks_like_reasoning
from jaxspec.call.options import group_options


def load_golden(method):
    return jaxspec.load(
        target_of(method), drafter={method: golden(method, "drafter")}, dtype="float32"
    )


@pytest.fixture(scope="module")
def dflash():
    return load_golden("dflash")


@pytest.fixture(scope="module")
def jetspec():
    return load_golden("jetspec")


TRACES = {method: records(method, "decode.json") for method in ("dflash", "ddtree", "jetspec")}


def cut(lengths, total):
    """Accepted lengths as ours are reported: the last round counts only what was emitted."""
    kept = []
    for length in lengths:
        if total <= 0:
            break
        kept.append(min(length, total))
        total -= length
    return kept


def lengths_of(out):
    return [len(r.path) for r in out.rounds]


def paths_of(token, parent, logprob):
    """{path of tokens from the root: score} of a tree, whatever the order of its rows."""
    paths = [(int(token[0]),)]
    for t, p in zip(token[1:], parent[1:], strict=True):
        paths.append((*paths[p], int(t)))
    return dict(zip(paths, map(float, logprob), strict=True))


def of_frequent_sizes(method: str, field: str) -> list:
    """Indices of a method's traces, as slow tests those of all but one size, which compile anew."""
    sizes = [trace[field] for trace in TRACES[method]]
    frequent = max(sizes, key=lambda size: (sizes.count(size), size or 0))
    return slow_except([i for i, size in enumerate(sizes) if size == frequent], range(len(sizes)))


@pytest.mark.parametrize("index", of_frequent_sizes("dflash", "block_size"))
def test_dflash_traces(dflash, index):
    record = TRACES["dflash"][index]
    if record["quirk_stop_equals_mask"]:
        record["generated"] = expected_up_to_stop(record)
    method, size = "ar" if record["block_size"] == 1 else "dflash", record["block_size"]
    larger = size > dflash.spec.drafter("dflash").block_size
    with pytest.warns(UserWarning, match="was trained for") if larger else nullcontext():
        out = jaxspec.decode(
            dflash,
            record["prompt"],
            max_new_tokens=record["max_new_tokens"],
            stop=record["stop_token_ids"] or (),
            drafter=method,
            speculation=jaxspec.Speculation(
                builder="chain", block_size=None if method == "ar" else size
            ),
            budget=size,
            trace=True,
        )
    assert out.tokens == record["generated"]
    if not record["quirk_stop_equals_mask"]:
        assert lengths_of(out) == cut(record["acceptance_lengths"], len(out.tokens) - 1)


def expected_up_to_stop(record):
    """The reference stops after one round when a stop id equals the mask id; the text itself is the
    greedy one.
    """
    greedy = record["ar_greedy"][: record["max_new_tokens"]]
    ends = [i for i, token in enumerate(greedy) if token in record["stop_token_ids"]]
    return greedy[: ends[0] + 1] if ends else greedy


@pytest.mark.parametrize("index", of_frequent_sizes("ddtree", "tree_budget"))
def test_ddtree_traces(dflash, index):
    record = TRACES["ddtree"][index]
    budget = record["tree_budget"]
    rows = (record["block_size"] - 1 if budget is None else budget) + 1
    out = jaxspec.decode(
        dflash,
        record["prompt"],
        max_new_tokens=record["max_new_tokens"],
        stop=record["stop_token_ids"] or (),
        speculation=jaxspec.Speculation(builder="best_first"),
        budget=rows,
        trace=True,
    )
    mask_token = dflash.spec.drafter("dflash").mask_token_id
    assert [
        token for token in out.tokens if token != mask_token or not record["contains_mask"]
    ] == record["generated"]
    ours, theirs = lengths_of(out), cut(record["acceptance_lengths"], len(out.tokens) - 1)
    # In these rounds the reference's own buffer cuts the draft block short; all earlier rounds must
    # agree.
    compared = min([*record["buffer_truncated_rounds"], len(theirs)])
    assert ours[:compared] == theirs[:compared]
    for mine, theirs_tree in zip(out.rounds[:compared], record["round_trees"], strict=False):
        scores = paths_of(mine.tree.token, mine.tree.parent, mine.tree.logprob)
        theirs = paths_of(
            [mine.tree.token[0], *theirs_tree["tokens"]],
            theirs_tree["parents"],
            [0.0] * len(theirs_tree["parents"]),
        )
        assert len(scores) == len(theirs)
        # Same order; where rounding of the logits swaps two rows, their scores are closer than it.
        for path, other in zip(scores, theirs, strict=True):
            swapped = scores.get(other, min(scores.values()))
            assert path == other or abs(scores[path] - swapped) < 1e-4


def fanout_of(args):
    """Our rule for the reference's tree algorithm and its knobs, profile and prompt information."""
    knobs, prompt, profile = (
        args["algo_kwargs"],
        args["prompt_info"] or {},
        args["profile_table"] or {},
    )
    match args["algo"]:
        case "accum_logp":
            return None
        case "top2gap_fanout":
            return make_fanout("top2gap", beta=knobs.get("beta", 1.0), middle=knobs.get("g_0", 1.0))
        case "depth_rank_histogram":
            return make_fanout(
                "rank_histogram", profile=profile["depth_rank_accept"], threshold=knobs["tau"]
            )
        case "task_router":
            return make_fanout("task_router", task=prompt["task"])
        case "class_histogram":
            return make_fanout(
                "class_histogram",
                histograms=profile.get("per_class_histograms", {}),
                task=prompt["task"],
            )
        case "reasoning_router":
            return make_fanout("reasoning_router", reasoning=looks_like_reasoning(prompt["text"]))


# All but a chain and a tree are slow tests: their settings differ, so that each compiles anew.
@pytest.mark.parametrize(
    "index",
    mark_thorough(
        [24], slow_except(range(len(TRACES["jetspec"]))[:48:24], range(len(TRACES["jetspec"])))
    ),
)
def test_jetspec_traces(jetspec, index):
    record = TRACES["jetspec"][index]
    args, mode = record["args"], record["mode"]
    # `dflash_baseline` is the DFlash decode loop around the same causal head: a chain too.
    options = {
        "ar": dict(drafter="ar"),
        "chain": dict(builder="chain", budget=args.get("block_size")),
        "dflash_baseline": dict(builder="chain", budget=args.get("block_size")),
        "tree": dict(budget=args.get("budget")),
    }[mode]
    if mode == "tree":
        options["builder"] = expand(args["tree_width"], fanout_of(args))
    if mode != "ar":
        options["block_size"] = args["block_size"]
    out = jaxspec.decode(
        jetspec,
        record["prompt"],
        max_new_tokens=record["max_new_tokens"],
        stop=record["eos"],
        trace=True,
        **group_options(**options),
    )
    assert out.tokens == record["token_ids"]
    lengths = record.get("accept_lengths") or record.get("acceptance_lengths")
    if lengths:
        assert lengths_of(out) == cut(lengths, len(out.tokens) - 1)
    if "tpf" in record and mode == "chain":
        assert len(out.rounds) == round(len(out.tokens) / record["tpf"])
    for mine, wanted in zip(out.rounds, record.get("trees") or [], strict=False):
        ours = paths_of(mine.tree.token, mine.tree.parent, mine.tree.logprob)
        theirs = paths_of(wanted["tokens"], wanted["parents"], wanted["cum_logprob"])
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose([ours[p] for p in theirs], list(theirs.values()), atol=1e-4)
