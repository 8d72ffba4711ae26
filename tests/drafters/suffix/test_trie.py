"""Trees of continuations against a suffix tree in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suffix_tree import SuffixTree, list_nodes, speculate

from jaxspec.drafters.suffix.drafter import SuffixConfig, find_continuations
from jaxspec.drafters.suffix.text import Text
from jaxspec.drafters.suffix.trie import find_likeliest, score_trie

LONGEST, DEPTH, SIZE = 5, 4, 48


def make_texts():
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, size, 44).tolist() for size in (2, 3, 4, 8) for _ in range(16)]
    return [*texts, [0, 1, 2, 3] * 11, [2] * 44, [*range(44)], [0, 1, 0, 2] * 11]


def find(texts, length, occurrences=SIZE, shortest=1):
    token = jnp.pad(jnp.asarray(texts), ((0, 0), (0, 3)))  # garbage after the text
    text = Text(token, jnp.full(len(texts), length))
    own = dict(longest=LONGEST, shortest=shortest, occurrences=occurrences, depth=DEPTH)
    return jax.jit(lambda text: find_continuations(text, **own))(text)


def paths_of(trie, number):
    """(path, count, chance) of every node, by the occurrences that the arrays name."""
    token, first, count, chance = (
        np.asarray(x)[number] for x in (trie.token, trie.first, trie.count, trie.chance)
    )
    found = {}
    for k, a in zip(*np.nonzero(count), strict=True):
        assert first[k, a] == a
        found[tuple(token[: k + 1, a].tolist())] = int(count[k, a]), float(chance[k, a])
    assert len(found) == (count > 0).sum()
    return found


@pytest.mark.parametrize("length", [44, 30, 7, 1])
def test_the_tree_is_the_suffix_trees(length):
    texts, matches = make_texts(), set()
    trie = find(texts, length)
    for number, text in enumerate(texts):
        known = text[:length]
        node, matched = SuffixTree([known], LONGEST + DEPTH).find_suffix(known, LONGEST)
        matches.add(matched)
        assert int(trie.matched[number]) == matched
        found, chances = paths_of(trie, number), list_nodes(node, DEPTH)
        assert set(found) == set(chances)
        for path, (_, chance) in found.items():
            assert chance == pytest.approx(chances[path], rel=1e-5)
    assert length == 1 or len(matches) > 2


def test_the_score_is_the_sum_of_the_best_nodes():
    texts = make_texts()
    trie = find(texts, 44)
    scores = score_trie(trie, 2 * trie.matched)
    for number, text in enumerate(texts):
        tree = SuffixTree([text], LONGEST + DEPTH)
        _, score = speculate(tree, text, longest=LONGEST, depth=DEPTH, factor=2.0)
        assert float(scores[number]) == pytest.approx(score, rel=1e-4)


def test_the_likeliest_path_follows_the_counts():
    texts = make_texts()
    trie = find(texts, 44)
    for number, text in enumerate(texts):
        path = [token for token in find_likeliest(trie)[number].tolist() if token >= 0]
        node, _ = SuffixTree([text], LONGEST + DEPTH).find_suffix(text, LONGEST)
        for token in path:
            assert node.children[token].count == max(c.count for c in node.children.values())
            node = node.children[token]
        assert len(path) == DEPTH or node is None or not node.children


def test_only_the_latest_occurrences_count():
    """The last tokens 5 6 occur 12 times: first before 1, the latest 10 times before 2 or 3."""
    text = [5, 6, 1] * 2 + [5, 6, 2] * 6 + [5, 6, 3] * 4 + [9, 5, 6]
    found = paths_of(find([text], len(text), occurrences=10), 0)
    assert {path: count for path, (count, _) in found.items() if len(path) == 1} == {
        (2,): 6,
        (3,): 4,
    }
    assert len([path for path in paths_of(find([text], len(text)), 0) if len(path) == 1]) == 3


def test_short_matches_can_be_left_out():
    trie = find([[7, 1, 2, 3, 7]], 5, shortest=2)
    assert int(trie.matched[0]) == 0 and not np.any(trie.count)
    assert int(find([[7, 1, 2, 3, 7]], 5).matched[0]) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"occurrences": 9}, "occurrences is 9: give at least 10"), ({"factor": 0}, "factor is 0")],
)
def test_configs_that_make_no_sense(fields, words):
    with pytest.raises(ValueError, match=words):
        SuffixConfig(vocab_size=4, **fields)
