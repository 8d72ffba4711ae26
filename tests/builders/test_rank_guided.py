"""Rank-guided trees against those of the authors' own code, and what merging duplicates must
keep.
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.builders.candidates import rank
from jaxspec.builders.rank_guided import make_rank_guided
from jaxspec.builders.stepwise import Offers, finish
from jaxspec.core.tree import validate
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.specblock import files
from jaxspec.drafters.specblock.drafter import make_specblock_drafter
from jaxspec.io.safetensors_files import WeightFiles
from jaxspec.targets import weights as target_weights
from jaxspec.targets.hf_config import target_config
from jaxspec.targets.transformer import Transformer

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "specblock" / "trees.json").read_text())
RUNS = json.loads((GOLDEN / "specblock" / "rounds.json").read_text())
LENGTH, STARTS, SLOTS = 64, 40, 4
NO_LIMIT = jnp.int32(100)


class Drafts:
    """The tiny drafter after each golden context: the root's offers, and those of up to 40 nodes a
    step.
    """

    def __init__(self):
        target = target_config(json.loads((GOLDEN / "tiny_llama" / "config.json").read_text()))
        weights = target_weights.from_hf(WeightFiles(GOLDEN / "tiny_llama"), target)
        config = files.config_from_hf(
            json.loads((GOLDEN / "specblock" / "draft" / "config.json").read_text())
        )
        config = dataclasses.replace(files.for_target(config, target), blocks=3)
        params = files.read(GOLDEN / "specblock" / "draft", config, "float32")
        drafter = make_specblock_drafter(config)
        head = TargetHead(lambda tokens: weights["params"]["embedding"][tokens], None)

        def begin(tokens, count):
            positions = jnp.arange(LENGTH)[None]
            features = (
                Transformer(target)
                .apply(weights, tokens, positions, feature_layers=config.feature_layers)
                .features
            )
            following = jnp.roll(tokens, -1, axis=1)
            state = drafter.init(1, LENGTH, jnp.float32)
            state = drafter.absorb(
                params,
                state,
                head,
                Committed(tokens, following, features, jnp.zeros(1, jnp.int32), count),
            )
            proposal, scratch = drafter.start(
                params, state, head, tokens[:, 0], SLOTS + 2 * STARTS * SLOTS
            )
            return offers(proposal), state, scratch

        def expand(state, scratch, nodes, first):
            proposal, scratch = drafter.expand(params, state, scratch, head, nodes, first)
            return offers(proposal), scratch

        def offers(proposal):
            nodes = proposal.logits.shape[1]
            ranked = rank(proposal.logits.reshape(1, nodes * SLOTS, -1), 10)
            token, logprob = (x.reshape(nodes, SLOTS, -1) for x in (ranked.token, ranked.logprob))
            return Offers(token, logprob, proposal.classes[0])

        self._begin, self.expand, self.compiled = jax.jit(begin), jax.jit(expand), {}

    def begin(self, context):
        tokens = np.zeros((1, LENGTH), np.int32)
        tokens[0, : len(context)] = context
        return self._begin(tokens, jnp.array([len(context) - 1]))

    def pool(self, stepper, context):
        """The pool that `stepper` grows after `context`."""
        offers, state, scratch = self.begin(context)
        if stepper not in self.compiled:
            self.compiled[stepper] = jax.jit(stepper.begin), jax.jit(stepper.grow)
        begin, grow = self.compiled[stepper]
        pool, nodes = begin(offers, NO_LIMIT)
        for step in range(stepper.steps):
            assert nodes.token.shape == (stepper.nodes,)
            padded = jax.tree.map(lambda x: jnp.pad(x, (0, STARTS - len(x)))[None], nodes)
            offers, scratch = self.expand(
                state, scratch, padded, jnp.int32(SLOTS + step * STARTS * SLOTS)
            )
            offers = jax.tree.map(lambda x: x[: stepper.nodes], offers)
            pool, nodes = grow(pool, nodes, offers, jnp.int32(step), NO_LIMIT)
        return jax.tree.map(np.asarray, pool)


@pytest.fixture(scope="module")
def drafts():
    return Drafts()


def stepper_of(config, **options):
    names = {
        "tree_width": "beam",
        "adaptive_slot0": "adaptive_slot0",
        "adaptive_all": "adaptive_all",
    }
    settings = {ours: config[theirs] for ours, theirs in names.items()} | options
    widths = tuple(config["rank_slot_topk"])
    return make_rank_guided(
        SLOTS,
        config["max_blocks"],
        257,
        config["total_tokens"] + 1,
        widths=widths,
        starts=STARTS,
        **settings,
    )


def paths(tokens, parents):
    """How often each path occurs, duplicates apart."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return Counter(found)


def same_as_golden(drafts, case):
    stepper = stepper_of(case["config"], keep_duplicates=True)
    pool = drafts.pool(stepper, case["context"])
    tree = finish(pool, jnp.int32(case["tokens"][0]), stepper.rows, stepper.longest)
    size = int(tree.size)
    assert size == len(case["tokens"])
    assert paths(*np.asarray([tree.token, tree.parent])[:, :size].tolist()) == paths(
        case["tokens"], [-1, *(parent + 1 for parent in case["parents"])]
    )
    if "position_ids" in case:
        assert sorted(np.asarray(tree.depth[:size])) == sorted(case["position_ids"])


def test_golden_tree(drafts):
    same_as_golden(drafts, CASES[11])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_golden_trees(drafts, number):
    same_as_golden(drafts, CASES[number])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_golden_rounds(drafts, number):
    """The tree of every round, and the longest path of it that the text takes, with clean pairs in
    the drafter's cache.
    """
    run = RUNS[number]
    context, text = run["prompt"] + run["tokens"][:1], run["tokens"][1:]
    for tree, accepted in zip(run["trees"], run["accepted"], strict=True):
        assert tree["tokens"][0] == context[-1]
        same_as_golden(drafts, {"config": run["config"], "context": context, **tree})
        on_path = paths(tree["tokens"], [-1, *(parent + 1 for parent in tree["parents"])])
        assert accepted == max(
            n for n in range(len(text) + 1) if (context[-1], *text[:n]) in on_path
        )
        context, text = context + text[: accepted + 1], text[accepted + 1 :]


@pytest.mark.slow
def test_the_decode_loop_goes_the_same_way(drafts):
    """Trees and paths of `decode`, whose caches grow round by round, are those of drafts from the
    whole text; T=1 keeps it.
    """
    folder = str(GOLDEN / "specblock" / "draft")
    params = jaxspec.load(
        str(GOLDEN / "tiny_llama"), drafter={"specblock": folder}, dtype="float32"
    )
    runs, options = (
        (RUNS[0], RUNS[2]),
        {"method": "specblock", "builder": "rank_guided", "fanout": "slim", "budget": 61},
    )
    prompts = [run["prompt"] for run in runs]
    out = jaxspec.decode(params, prompts, max_new_tokens=47, temperature=0, trace=True, **options)
    stepper = make_rank_guided(SLOTS, 2, 160, 61, 10, "slim")
    for run, found in zip(runs, out, strict=True):
        assert found.tokens == run["tokens"][:47]
        assert found.stats.rounds == len(run["trees"])
        context = run["prompt"] + found.tokens[:1]
        for step in found.rounds:
            tree = finish(
                drafts.pool(stepper, context), jnp.int32(context[-1]), stepper.rows, stepper.longest
            )
            size = int(tree.size)
            expected = paths(*np.asarray([tree.token, tree.parent])[:, :size].tolist())
            assert paths(step.tree.token.tolist(), step.tree.parent.tolist()) == expected
            context = context + step.tree.token[list(step.path[1:])].tolist() + [step.bonus]
    sampled = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3}
    plain = jaxspec.decode(params, prompts, method="ar", **sampled)
    assert [x.tokens for x in jaxspec.decode(params, prompts, **sampled, **options)] == [
        x.tokens for x in plain
    ]


def test_duplicates_are_merged(drafts):
    case = CASES[11]
    merged = drafts.pool(stepper_of(case["config"]), case["context"])
    kept = drafts.pool(stepper_of(case["config"], keep_duplicates=True), case["context"])
    texts = []
    for pool in (merged, kept):
        path = {-1: ()}
        for i in np.flatnonzero(pool.logprob > -np.inf).tolist():
            path[i] = (*path[int(pool.parent[i])], int(pool.token[i]))  # the parent stands before
        texts.append(Counter(path.values()))
    assert set(texts[0]) == set(texts[1])
    assert max(texts[0].values()) == 1 < max(texts[1].values())
    tree = finish(merged, jnp.int32(case["context"][-1]), 61, 8)
    validate(jax.tree.map(lambda x: x[None], tree))


def offers_of(classes, sure, nodes=1):
    """Equal offers of every node: tokens by rank, the best of probability `sure`."""
    logprob = np.log(np.array([sure, *np.full(9, 1e-3)], np.float32))
    token = np.broadcast_to(np.arange(10), (nodes, SLOTS, 10)) + 10 * np.arange(SLOTS)[:, None]
    classes = np.broadcast_to(np.asarray(classes, np.int32), (nodes, SLOTS))
    return Offers(
        jnp.asarray(token, jnp.int32),
        jnp.asarray(np.broadcast_to(logprob, token.shape)),
        jnp.asarray(classes),
    )


def depths(pool):
    """Nodes that are there, by depth from 1 on."""
    return np.bincount(np.asarray(pool.depth)[np.asarray(pool.logprob) > -np.inf])[1:].tolist()


def test_classes_probabilities_and_limits_decide_the_width():
    begin = jax.jit(make_rank_guided(SLOTS, 2, 100, 40, 6, "default", 1, 1, starts=STARTS).begin)
    pool, nodes = begin(offers_of([0, 1, 3, 0], 0.5), NO_LIMIT)
    # The greedy chain, 5 siblings of slot 0, 3 of slot 1; the class of slot 2 stops the rest.
    assert depths(pool) == [6, 4, 1, 1]
    # Every node of the two branching slots starts a block, and so does the end of the chain, unless
    # the head gave up.
    assert int(nodes.live.sum()) == 11
    assert nodes.source[:2].tolist() == [0, 1]
    assert int(begin(offers_of([0, 3, 0, 0], 0.5), NO_LIMIT)[1].live.sum()) == 6
    pool, nodes = begin(offers_of([0, 1, 3, 0], 0.5), jnp.int32(2))
    assert depths(pool) == [6, 4]
    assert np.asarray(nodes.depth)[np.asarray(nodes.live)].max() == 1
    assert depths(begin(offers_of([0, 2, 2, 0], 0.95), NO_LIMIT)[0]) == [3, 2, 2, 2]


def test_starts_can_be_bounded():
    stepper = make_rank_guided(SLOTS, 2, 100, 40, 6, "default", starts=3)
    _, nodes = jax.jit(stepper.begin)(offers_of([0, 1, 1, 0], 0.5), NO_LIMIT)
    assert stepper.nodes == 3
    assert [make_rank_guided(SLOTS, 2, 100, budget).nodes for budget in (8, 40, 400)] == [4, 10, 28]
    assert nodes.source.tolist() == [0, 1, 2]  # the greedy chain is the most probable


def test_equal_arguments_give_one_stepper_and_bad_ones_are_refused():
    assert make_rank_guided(4, 2, 100, 60) is make_rank_guided(4, 2, 100, 60)
    assert [make_rank_guided(4, 2, 100, *n).longest for n in ((60,), (4,), (1,))] == [8, 3, 1]
    assert make_rank_guided(4, 2, 100, 60, depth=7).longest == 7
    for bad, match in [
        (dict(widths="wide"), "unknown widths 'wide': choose one of default, slim"),
        (dict(widths=(2, -1)), "widths are"),
        (dict(starts=0), "starts is 0"),
        (dict(adaptive_all=3), "adaptive_all 3"),
    ]:
        with pytest.raises(ValueError, match=match):
            make_rank_guided(4, 2, 100, 60, **bad)
    with pytest.raises(ValueError, match="budget is 0"):
        make_rank_guided(4, 2, 100, 0)
    with pytest.raises(ValueError, match="rank head"):
        make_rank_guided(4, 2, 100, 60).begin(
            offers_of([0] * 4, 0.5).replace(classes=None), NO_LIMIT
        )
