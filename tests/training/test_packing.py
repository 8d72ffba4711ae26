import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.documents import DataError
from training.data.packing import cut_sample, first_fit, pack_rows
from training.data.samples import Sample


def sample(size, prompt=0, first=0):
    return Sample(
        np.arange(first, first + size, dtype=np.int32),
        np.arange(size) >= prompt,
        place=f"sample {first}",
    )


@given(st.lists(st.integers(1, 16), max_size=40), st.integers(16, 40))
def test_first_fit_is_the_textbook_one(sizes, capacity):
    free, expected = [], []
    for size in sizes:
        row = next((i for i, left in enumerate(free) if left >= size), len(free))
        free += [capacity] * (row == len(free))
        free[row] -= size
        expected.append(row)
    assert first_fit(sizes, capacity) == expected


def test_documents_are_whole_apart_and_start_at_position_zero():
    samples = [sample(5, 2, 100), sample(4, 1, 200), sample(3, 1, 300), sample(7, 3, 400)]
    rows = pack_rows(samples, 8)
    assert rows.tokens.tolist() == [
        [100, 101, 102, 103, 104, 300, 301, 302],
        [200, 201, 202, 203, 0, 0, 0, 0],
        [400, 401, 402, 403, 404, 405, 406, 0],
    ]
    assert rows.segments.tolist() == [
        [1, 1, 1, 1, 1, 2, 2, 2],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 0],
    ]
    assert rows.positions.tolist() == [
        [0, 1, 2, 3, 4, 0, 1, 2],
        [0, 1, 2, 3, 0, 0, 0, 0],
        [0, 1, 2, 3, 4, 5, 6, 0],
    ]
    assert rows.loss_mask.astype(int).tolist() == [
        [0, 0, 1, 1, 1, 0, 1, 1],
        [0, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 0],
    ]
    assert [array.dtype for array in rows] == [np.int32, np.int32, np.int32, bool]
    assert rows.efficiency == pytest.approx(19 / 24)


def test_text_is_split_and_answers_are_truncated():
    text, answer = sample(10), sample(10, 3)
    assert [piece.tokens.tolist() for piece in cut_sample(text, 4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [piece.tokens.tolist() for piece in cut_sample(answer, 4)] == [[0, 1, 2, 3]]
    assert len(cut_sample(answer, 4, "split")) == 3 and len(cut_sample(text, 4, "truncate")) == 1
    assert (
        cut_sample(answer, 3) == [] and cut_sample(text, 9)[1:] == []
    )  # nothing to learn: a prompt alone, one token alone
    assert cut_sample(text, 4)[1].place == text.place


def test_what_cannot_be_packed_is_named():
    with pytest.raises(DataError, match="sample 7: 9 tokens do not fit into a row of 8"):
        pack_rows([sample(4), sample(9, first=7)], 8)
    with pytest.raises(DataError, match="no samples"):
        pack_rows([], 8)
