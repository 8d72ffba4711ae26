"""Prompt lookup mixed into another drafter, against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Nodes
from jaxspec.drafters.base import Committed, Drafter, Proposal
from jaxspec.drafters.prompt_lookup.mixture import (
    GUESS_COUNT,
    GUESS_OTHER,
    GUESS_SAME,
    LONGEST,
    Scratch,
    mix_lookup,
)

DEPTH, VOCAB = 3, 4


def make_toy(slots: int = DEPTH) -> Drafter:
    """A drafter whose distributions are its variables, [B, M, slots, VOCAB]."""

    def start(params, state, target, root, rows, **block):
        return Proposal(params[:, :1]), "scratch"

    def expand(params, state, scratch, target, nodes, first):
        return Proposal(params), scratch

    return Drafter(
        (), DEPTH, slots, lambda *sizes: (), lambda params, state, *new: state, start, expand
    )


def look_up(text: list[int]) -> tuple[list[int], int]:
    """What followed the latest occurrence of the longest n-gram at the text's end, and n."""
    for n in range(min(LONGEST, len(text)), 0, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[len(text) - n :]:
                return text[end : end + DEPTH], n
    return [], 0


def count_copies(text: list[int], parts: list[int], choices) -> tuple[np.ndarray, np.ndarray]:
    """Copied tokens that were right, and all that were judged, by kind.

    Args:
      choices: the drafter's first choices before every part; None where they are not known.
    """
    square = np.arange(1, LONGEST + 1) ** 2
    guess = [square / (square + one) for one in (GUESS_OTHER, GUESS_SAME)]
    right, count = GUESS_COUNT * np.concatenate(guess), np.full(2 * LONGEST, GUESS_COUNT)
    known = 0
    for part, chosen in zip(parts, choices, strict=True):
        copied, matched = look_up(text[: known + 1]) if known and chosen is not None else ([], 0)
        for place, token in enumerate(copied[:part]):
            kind = min(matched + place, LONGEST) - 1 + LONGEST * (token == chosen[place])
            count[kind] += 1
            if token != text[known + 1 + place]:
                break
            right[kind] += 1
        known += part
    return right, count


def absorb_parts(drafter, texts, parts, choices):
    tokens = jnp.asarray(texts)
    state = drafter.init(len(texts), 64, jnp.float32)
    absorb = jax.jit(lambda state, new: drafter.absorb({}, state, None, new))
    begun, size = 0, max(parts)
    padded = jnp.pad(tokens, ((0, 0), (0, size + 1)))
    for part, chosen in zip(parts, choices, strict=True):
        if chosen is not None:
            everyone = jnp.broadcast_to(jnp.asarray(chosen), (len(texts), DEPTH))
            state = drafter.remember(state, Scratch("own", everyone))
        token, following = (padded[:, begun + i : begun + i + size] for i in (0, 1))
        full = [jnp.full(len(texts), number) for number in (begun, part)]
        state, begun = absorb(state, Committed(token, following, None, *full)), begun + part
    return state


def make_texts():
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, VOCAB, 40).tolist() for _ in range(24)]
    return [*texts, [0, 1, 2, 3] * 10, [2] * 40, [0, 1] * 18 + [3, 1, 0, 2]]


def test_copies_are_judged_by_the_length_of_their_match():
    texts, parts = make_texts(), [9, 1, 4, 0, 2, 1, 1, 5, 3, 1]
    choices = [None, [1, 2, 3], [3, 3, 0], None, [2, 1, 1], *[[1, 0, 2]] * 5]
    copies = absorb_parts(mix_lookup(make_toy()), texts, parts, choices).copies
    judged = 0
    for number, text in enumerate(texts):
        known = text[: sum(parts) + 1]
        copied, matched = look_up(known)
        assert copies.token[number].tolist() == copied + [-1] * (DEPTH - len(copied))
        assert int(copies.matched[number]) == matched
        right, count = count_copies(known, parts, choices)
        np.testing.assert_allclose(copies.right[number], right, rtol=1e-6)
        np.testing.assert_allclose(copies.count[number], count, rtol=1e-6)
        judged += (count != GUESS_COUNT).sum()
    assert judged > len(texts)


def test_choices_of_an_earlier_round_judge_nothing():
    """After rounds that did not draft, the drafter's choices are not known."""
    drafter, parts = mix_lookup(make_toy()), [20, 1]
    before = absorb_parts(drafter, make_texts(), parts, [None, [0, 1, 2]])
    after = absorb_parts(drafter, make_texts(), [*parts, 1], [None, [0, 1, 2], None])
    assert (after.copies.count == before.copies.count).all()
    assert (after.copies.chosen == -1).all()


@pytest.mark.thorough
def test_a_copied_token_gets_the_share_of_its_match():
    texts, parts, choices = make_texts(), [30, 2, 1], [None, [0, 1, 2], [2, 2, 3]]
    drafter = mix_lookup(make_toy())
    state = absorb_parts(drafter, texts, parts, choices)
    logits = jax.random.normal(jax.random.key(0), (len(texts), 1, DEPTH, VOCAB))
    logits = logits.at[:, :, 1, 2].set(-jnp.inf)  # not in the draft vocabulary, perhaps copied
    root = jnp.asarray([text[33] for text in texts])
    mixed, scratch = drafter.start(logits, state, None, root, DEPTH)
    assert scratch.own == "scratch"
    assert (scratch.chosen == logits[:, 0].argmax(-1)).all()
    for number, text in enumerate(texts):
        copied, matched = look_up(text[:34])
        right, count = count_copies(text[:34], parts, choices)
        for place in range(DEPTH):
            expected = np.array(jax.nn.softmax(logits[number, 0, place]))
            if place < len(copied):
                same = copied[place] == expected.argmax()
                kind = min(matched + place, LONGEST) - 1 + LONGEST * same
                share = right[kind] / count[kind]
                expected = (1 - share) * expected + share * np.eye(VOCAB)[copied[place]]
            found = jax.nn.softmax(mixed.logits[number, 0, place])
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_only_nodes_on_the_copied_path_are_changed():
    drafter = mix_lookup(make_toy(slots=2))
    state = absorb_parts(drafter, [[0, 1, 2, 3, 0, 1]], [5], [None])
    assert state.copies.token.tolist() == [[2, 3, 0]]
    logits = jax.random.normal(jax.random.key(1), (1, 4, 2, VOCAB))
    depth, token = jnp.array([[1, 1, 2, 3]]), jnp.array([[2, 3, 3, 0]])
    nodes = Nodes(token, depth, depth, depth, depth > 0)
    mixed, _ = drafter.expand(logits, state, Scratch(None, token), None, nodes, 0)
    changed = (mixed.logits != logits).any(-1)[0]
    # After 2 the path goes on with 3 and 0, after 2 3 with 0, and after 2 3 0 nothing is copied.
    assert changed.tolist() == [[True, True], [False, False], [True, False], [False, False]]
    assert (mixed.logits >= logits).all()
