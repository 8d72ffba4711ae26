import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec.core.tree import (
    ancestor_words,
    assemble,
    chain_words,
    pad_rows,
    parent_rows,
    root_only,
    take_rows,
    validate,
)


def lineage(parent: list[int]) -> np.ndarray:
    """bool [N, N] by walking up from every row."""
    mask = np.zeros((len(parent), len(parent)), bool)
    for row in range(len(parent)):
        j = row
        while j >= 0:
            mask[row, j] = True
            j = parent[j]
    return mask


def unpack(words: jax.Array) -> np.ndarray:
    words = np.asarray(words)
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[:, : len(words)].astype(
        bool
    )


def batch(parent, logprob, rows=None, size=None):
    """A batch of one tree; every token is distinct."""
    rows, size = rows or len(parent), size or len(parent)
    depth = lineage(parent).sum(1) - 1
    fields = [np.arange(len(parent)) + 10, parent, depth, logprob]
    token, parent, depth, logprob = (
        np.pad(np.asarray(x), (0, rows - len(x)), constant_values=9) for x in fields
    )
    tree = jax.jit(assemble)(
        np.int32(token), np.int32(parent), np.int32(depth), np.float32(logprob), np.int32(size)
    )
    return jax.tree.map(lambda x: np.array(x)[None], tree)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_ancestors_by_doubling_equal_walking_up(data):
    rows = data.draw(st.sampled_from([1, 2, 9, 33, 64]))
    parent = [-1] + [data.draw(st.integers(max(0, i - 4), i - 1)) for i in range(1, rows)]
    expected = lineage(parent)
    doubling = jax.jit(ancestor_words, static_argnums=1)
    words = doubling(np.array(parent, np.int32))
    assert words.shape == (rows, -(-rows // 32)) and words.dtype == jnp.uint32
    np.testing.assert_array_equal(unpack(words), expected)
    # As few rounds as the depth needs.
    rounds = int(expected.sum(1).max() - 1).bit_length()
    shallow = doubling(np.array(parent, np.int32), 2**rounds - 1)
    np.testing.assert_array_equal(shallow, words)


def test_chain_words_are_lower_triangular():
    np.testing.assert_array_equal(unpack(chain_words(40)), np.tri(40, dtype=bool))


def test_parents_follow_their_rows():
    order, parent = jnp.array([0, 5, 3, 9]), jnp.array([-1, 0, 5, 3])
    assert parent_rows(order, parent).tolist() == [-1, 0, 1, 2]


def test_padding_sees_only_itself():
    tree = batch([-1, 0, 0], [0, -1, -2], rows=5)
    validate(tree)
    assert tree.token[0].tolist() == [10, 11, 12, 0, 0]
    assert tree.parent[0].tolist() == [-1, 0, 0, 0, 0]
    assert tree.logprob[0].tolist() == [0, -1, -2, -np.inf, -np.inf]
    assert tree.ancestors[0, :, 0].tolist() == [1, 3, 5, 8, 16]


@pytest.mark.parametrize("rows", (1, 2, 32, 33, 40))
def test_every_prefix_is_a_tree(rows):
    parent = [-1, *np.random.default_rng(0).integers(0, np.arange(1, 40)).tolist()]
    tree = batch(parent, -np.arange(40.0), rows=45, size=35)
    part = take_rows(tree, rows)
    validate(part)
    assert part.ancestors.shape == (1, rows, -(-rows // 32)) and part.size.tolist() == [
        min(rows, 35)
    ]


@pytest.mark.parametrize(
    ("field", "row", "value", "message"),
    [
        ("parent", 0, 0, "row 0 is not a root"),
        ("parent", 2, 3, "row 2 has parent 3"),
        ("parent", 2, -1, "row 2 has parent -1"),
        ("depth", 3, 1, "row 3 has depth 1, its parent 1"),
        ("logprob", 2, -0.5, "row 2 scores -0.5"),
        ("logprob", 2, np.nan, "row 2 scores nan"),
        ("token", 2, 11, "row 2 repeats token 11 under row 0"),
        ("ancestors", 3, 9, "the mask of row 3"),
        ("ancestors", 4, 17, "the mask of row 4"),
        ("token", 4, 7, "padding rows must hold"),
    ],
)
def test_validate_names_what_is_wrong(field, row, value, message):
    tree = batch([-1, 0, 0, 1], [0, -1, -2, -3], rows=5)
    validate(tree)
    index = (0, row, 0) if field == "ancestors" else (0, row)
    getattr(tree, field)[index] = value
    with pytest.raises(ValueError, match=message):
        validate(tree)
    with pytest.raises(ValueError, match="size 0"):
        validate(tree.replace(size=np.array([0])))


def test_padding_changes_nothing_in_use():
    tree = root_only(jnp.array([5, 7]), 3)
    padded = pad_rows(tree, 40)
    validate(padded)
    assert padded.token.shape == (2, 40) and padded.size.tolist() == [1, 1]
    for field, same in zip(
        jax.tree.leaves(take_rows(padded, 3)), jax.tree.leaves(tree), strict=True
    ):
        np.testing.assert_array_equal(field, same)
