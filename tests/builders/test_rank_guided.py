"""Rank-guided trees against those of the authors' own code, and what merging duplicates must
keep.
"""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import golden, records, target_of

import jaxspec
from jaxspec.builders import Proposes, StepCandidates, rank_guided
from jaxspec.builders.candidates import rank
from jaxspec.builders.parse import parse_builder
from jaxspec.builders.trees.rows import choose_rows
from jaxspec.call.options import group_options
from jaxspec.core.tree import validate
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.specblock import files
from jaxspec.drafters.specblock.drafter import make_specblock_drafter
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.transformer import Transformer

CASES, RUNS = records("specblock", "trees.json"), records("specblock", "rounds.json")
HF = records("specblock", "draft", "config.json")
SLOTS, VOCABULARY = HF["diffspec_draft_token_num"], HF["vocab_size"]
# Room for the longest text, and for the nodes of a step.
LENGTH = max(
    *(len(case["context"]) for case in CASES), *(len(run["prompt"] + run["tokens"]) for run in RUNS)
)
STARTS = 40
NO_LIMIT = jnp.int32(100)


class Drafts:
    """The tiny drafter after each golden context: the root's candidates, and those of up to 40
    nodes a step.
    """

    def __init__(self):
        target = target_config(read_json(target_of("specblock") / "config.json"))
        weights = target_weights.from_hf(WeightFiles(target_of("specblock")), target)
        config = files.config_from_hf(HF)
        config = dataclasses.replace(files.for_target(config, target), blocks=3)
        params = files.read(golden("specblock", "draft"), config, "float32")
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
            return StepCandidates(token, logprob, proposal.classes[0])

        self._begin, self.expand, self.compiled = jax.jit(begin), jax.jit(expand), {}

    def begin(self, context):
        tokens = np.zeros((1, LENGTH), np.int32)
        tokens[0, : len(context)] = context
        return self._begin(tokens, jnp.array([len(context) - 1]))

    def pool(self, growth, context):
        """The pool that `growth` grows after `context`."""
        offers, state, scratch = self.begin(context)
        if growth not in self.compiled:
            self.compiled[growth] = jax.jit(growth.init), jax.jit(growth.grow)
        begin, grow = self.compiled[growth]
        pool, nodes = begin(offers, NO_LIMIT)
        for step in range(growth.steps):
            assert nodes.token.shape == (growth.nodes,)
            padded = jax.tree.map(lambda x: jnp.pad(x, (0, STARTS - len(x)))[None], nodes)
            offers, scratch = self.expand(
                state, scratch, padded, jnp.int32(SLOTS + step * STARTS * SLOTS)
            )
            offers = jax.tree.map(lambda x: x[: growth.nodes], offers)
            pool, nodes = grow(pool, nodes, offers, jnp.int32(step), NO_LIMIT)
        return jax.tree.map(np.asarray, pool)


@pytest.fixture(scope="module")
def drafts():
    return Drafts()


def growth_of(config, **options):
    names = {
        "width": "beam",
        "adaptive_slot0": "adaptive_slot0",
        "adaptive_all": "adaptive_all",
    }
    settings = {ours: config[theirs] for ours, theirs in names.items()} | options
    builder = rank_guided(classes=config["rank_slot_topk"], starts=STARTS, **settings)
    return builder.bind(proposes(config["max_blocks"], VOCABULARY, config["total_tokens"] + 1))


def proposes(blocks, vocab_size, budget, depth=None):
    """What a drafter of four rank classes offers."""
    return Proposes(depth or SLOTS * blocks, SLOTS, vocab_size, budget, True, rank_classes=4)


def paths(tokens, parents):
    """How often each path occurs, duplicates apart."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return Counter(found)


def same_as_golden(drafts, case):
    growth = growth_of(case["config"], keep_duplicates=True)
    pool = drafts.pool(growth, case["context"])
    tree = growth.finish(pool, jnp.int32(case["tokens"][0]))
    size = int(tree.size)
    assert size == len(case["tokens"])
    assert paths(*np.asarray([tree.token, tree.parent])[:, :size].tolist()) == paths(
        case["tokens"], [-1, *(parent + 1 for parent in case["parents"])]
    )
    if "position_ids" in case:
        assert sorted(np.asarray(tree.depth[:size])) == sorted(case["position_ids"])


def test_golden_tree(drafts):
    same_as_golden(drafts, CASES[len(CASES) // 2])


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
    folder = golden("specblock", "draft")
    params = jaxspec.load(target_of("specblock"), drafter={"specblock": folder}, dtype="float32")
    runs, options = (
        (RUNS[0], RUNS[2]),
        {"drafter": "specblock", "builder": "rank_guided", "budget": 61},
    )
    prompts = [run["prompt"] for run in runs]
    out = jaxspec.decode(
        params, prompts, max_new_tokens=47, temperature=0, trace=True, **group_options(**options)
    )
    growth = rank_guided().bind(proposes(2, HF["draft_vocab_size"], 61))
    for run, found in zip(runs, out, strict=True):
        assert found.tokens == run["tokens"][:47]
        assert found.stats.rounds == len(run["trees"])
        context = run["prompt"] + found.tokens[:1]
        for step in found.rounds:
            tree = growth.finish(drafts.pool(growth, context), jnp.int32(context[-1]))
            size = int(tree.size)
            expected = paths(*np.asarray([tree.token, tree.parent])[:, :size].tolist())
            assert paths(step.tree.token.tolist(), step.tree.parent.tolist()) == expected
            context = context + step.tree.token[list(step.path[1:])].tolist() + [step.bonus]
    sampled = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3}
    plain = jaxspec.decode(params, prompts, drafter="ar", **sampled)
    assert [
        x.tokens for x in jaxspec.decode(params, prompts, **sampled, **group_options(**options))
    ] == [x.tokens for x in plain]


def test_duplicates_are_merged(drafts):
    case = CASES[11]
    merged = drafts.pool(growth_of(case["config"]), case["context"])
    kept = drafts.pool(growth_of(case["config"], keep_duplicates=True), case["context"])
    texts = []
    for pool in (merged, kept):
        path = {-1: ()}
        for i in np.flatnonzero(pool.logprob > -np.inf).tolist():
            path[i] = (*path[int(pool.parent[i])], int(pool.token[i]))  # the parent stands before
        texts.append(Counter(path.values()))
    assert set(texts[0]) == set(texts[1])
    assert max(texts[0].values()) == 1 < max(texts[1].values())
    tree = choose_rows(merged, jnp.int32(case["context"][-1]), 61, 8)
    validate(jax.tree.map(lambda x: x[None], tree))


def offers_of(classes, sure, nodes=1):
    """Equal offers of every node: tokens by rank, the best of probability `sure`."""
    logprob = np.log(np.array([sure, *np.full(9, 1e-3)], np.float32))
    token = np.broadcast_to(np.arange(10), (nodes, SLOTS, 10)) + 10 * np.arange(SLOTS)[:, None]
    classes = np.broadcast_to(np.asarray(classes, np.int32), (nodes, SLOTS))
    return StepCandidates(
        jnp.asarray(token, jnp.int32),
        jnp.asarray(np.broadcast_to(logprob, token.shape)),
        jnp.asarray(classes),
    )


def depths(pool):
    """Nodes that are there, by depth from 1 on."""
    return np.bincount(np.asarray(pool.depth)[np.asarray(pool.logprob) > -np.inf])[1:].tolist()


def test_classes_probabilities_and_limits_decide_the_width():
    begin = jax.jit(rank_guided(6, "default", 1, 1, starts=STARTS).bind(proposes(2, 100, 40)).init)
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
    growth = rank_guided(6, "default", starts=3).bind(proposes(2, 100, 40))
    _, nodes = jax.jit(growth.init)(offers_of([0, 1, 1, 0], 0.5), NO_LIMIT)
    assert growth.nodes == 3
    assert [rank_guided().bind(proposes(2, 100, budget)).nodes for budget in (8, 40, 400)] == [
        4,
        10,
        28,
    ]
    assert nodes.source.tolist() == [0, 1, 2]  # the greedy chain is the most probable


def test_equal_builders_are_bound_once_and_bad_ones_refused():
    assert rank_guided().bind(proposes(2, 100, 60)) is rank_guided(10).bind(proposes(2, 100, 60))
    assert [rank_guided().bind(proposes(2, 100, n)).longest for n in (60, 4, 2)] == [8, 3, 1]
    assert rank_guided().bind(proposes(2, 100, 60, depth=7)).longest == 7
    for bad, match in [
        (dict(classes="wide"), "unknown classes 'wide': choose one of default, slim"),
        (dict(classes=(2, -1)), "classes are"),
        (dict(starts=0), "starts is 0"),
        (dict(starts="every"), "starts is 'every': give a number, or 'all'"),
        (dict(adaptive_all=3), "adaptive_all 3"),
    ]:
        with pytest.raises(ValueError, match=match):
            rank_guided(**bad)


def test_widths_fit_the_rank_classes():
    """A drafter may have any number of them; the last one stands for tokens beyond the list."""
    five = proposes(2, 100, 40)._replace(rank_classes=5)
    with pytest.raises(ValueError, match="classes 'slim' are 4 widths, the drafter has 5 rank cl"):
        rank_guided().bind(five)
    with pytest.raises(ValueError, match=r"classes \(2, 4\) are 2 widths, the drafter has 4"):
        rank_guided(classes=[2, 4]).bind(proposes(2, 100, 40))
    init = jax.jit(rank_guided(6, (2, 3, 4, 5, 0), starts=STARTS).bind(five).init)
    # Class 3 is not the last here: its slot branches. Class 4 is, and stops what follows.
    assert depths(init(offers_of([0, 3, 0, 0], 0.5), NO_LIMIT)[0]) == [6, 5, 2, 2]
    assert depths(init(offers_of([0, 4, 0, 0], 0.5), NO_LIMIT)[0]) == [6, 1, 1, 1]


@pytest.mark.parametrize(("count", "last"), [(2, 1), (4, 3), (5, 4)])
def test_the_last_class_ends_a_chain(count, last):
    """Whether the end of the root's chain starts a block: not where the first class but 0 is the
    last one.
    """
    sizes = proposes(2, 100, 40)._replace(rank_classes=count)
    widths = (*(1,) * last, 0)
    init = jax.jit(rank_guided(1, widths, 0, 0, starts=STARTS).bind(sizes).init)
    for own in range(1, count):
        _, nodes = init(offers_of([0, own, 0, 0], 0.5), NO_LIMIT)
        assert int(nodes.live.sum()) == (own != last)


def tree_of(builder, classes, sure, blocks=2, budget=400):
    """The nodes by depth of a whole tree of equal offers, and the starts of its second block."""
    growth = parse_builder(builder).bind(proposes(blocks, 100, budget))
    pool, nodes = jax.jit(growth.init)(offers_of(classes, sure), NO_LIMIT)
    starts = int(nodes.live.sum())
    for step in range(growth.steps):
        offers = offers_of(classes, sure, growth.nodes)
        pool, nodes = jax.jit(growth.grow)(pool, nodes, offers, jnp.int32(step), NO_LIMIT)
    return depths(pool), starts


PAPER = "rank_guided/width=null/classes=default/starts=all"
UNIFORM = "rank_guided/width=null/classes=[3,3,3,3]/adaptive_slot0=0/adaptive_all=0/starts=all"


def test_the_papers_tree_lets_the_class_decide_at_slot_0():
    """Algorithm 2: 2, 4 or 10 tokens by the class at every slot, none beside the greedy one in
    class 3, and a block from every node of a slot that branches.
    """
    found, starts = tree_of(PAPER, [0, 1, 2, 0], 0.99, blocks=1)
    assert found == [2, 4, 10, 2] and starts == 18
    assert tree_of(PAPER, [2, 0, 0, 0], 0.99, blocks=1)[0] == [10, 2, 2, 2]
    # Class 3 ends the branching, at slot 0 too; what branched before starts blocks.
    assert tree_of(PAPER, [0, 3, 1, 1], 0.5, blocks=1) == ([2, 1, 1, 1], 2)
    assert tree_of(PAPER, [3, 1, 1, 1], 0.5, blocks=1) == ([1, 1, 1, 1], 0)
    # The default gives slot 0 its own width, and starts from a quarter of the budget at most.
    default = "rank_guided/classes=default"
    assert tree_of(default, [0, 1, 2, 0], 0.99, blocks=1)[0] == [10, 4, 10, 2]
    assert tree_of(default, [0, 1, 2, 0], 0.99, blocks=1, budget=40)[1] == 10
    assert tree_of(PAPER, [0, 1, 2, 0], 0.99, blocks=1, budget=40)[1] == 18
    assert str(parse_builder(PAPER)) == "rank_guided/width=null/classes=default/starts=all"


@pytest.mark.parametrize("sure", [0.3, 0.99])
def test_the_uniform_control_is_uniform(sure):
    """K tokens at every slot, whatever the classes and probabilities are."""
    for classes in ([0, 1, 2, 3], [3, 3, 3, 3], [2, 0, 3, 1]):
        assert tree_of(UNIFORM, classes, sure, blocks=1) == ([3, 3, 3, 3], 12)
    chain = UNIFORM.replace("3,3,3,3", "1,1,1,1")
    for classes in ([0, 0, 0, 0], [3, 3, 3, 3]):
        assert tree_of(chain, classes, sure) == ([1] * 8, 1)
    # Equal widths alone still branch by probability.
    other = tree_of("rank_guided/classes=[3,3,3,3]", [0] * 4, sure, blocks=1)[0]
    assert other == ([3, 2, 2, 2] if sure > 0.9 else [10, 3, 3, 3])
