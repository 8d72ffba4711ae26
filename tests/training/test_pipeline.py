import json

import numpy as np
import pytest

from training.data.documents import DataError
from training.data.packing import pack_rows
from training.data.pipeline import AnchorBatches, DataOptions, balance, load_packed_rows
from training.data.samples import Sample


def sample(size, prompt=0, domain=None):
    return Sample(np.arange(1, size + 1, dtype=np.int32), np.arange(size) >= prompt, domain)


@pytest.fixture(scope="module")
def rows():
    """Seven rows of 16: a prompt and an answer, and a second document in some."""
    return pack_rows([sample(9 + i % 3, 4) for i in range(7)] + [sample(5, 1)] * 4, 16)


def test_batches_depend_on_the_step_alone(rows):
    one, other = AnchorBatches(rows, 3, 4, 4, seed=5), AnchorBatches(rows, 3, 4, 4, seed=5)
    late = one(11)
    for step in range(11):
        one(step)
    for name, array in other(11).items():
        np.testing.assert_array_equal(array, late[name])
        np.testing.assert_array_equal(array, one(11)[name])
    assert any(
        (AnchorBatches(rows, 3, 4, 4, seed=6)(step)["rows"] != one(step)["rows"]).any()
        for step in range(3)
    )


def test_every_epoch_sees_every_row_in_a_new_order_with_new_anchors(rows):
    batches = AnchorBatches(rows, 7, 4, 4, seed=0)
    first, second = batches(0), batches(1)
    assert sorted(first["rows"]) == sorted(second["rows"]) == list(range(7))
    assert first["rows"].tolist() != second["rows"].tolist()
    at = [
        dict(zip(batch["rows"].tolist(), batch["anchors"].tolist(), strict=True))
        for batch in (first, second)
    ]
    assert at[0] != at[1]
    odd = AnchorBatches(rows, 3, 4, 4, seed=0)
    assert sorted(np.concatenate([odd(step)["rows"] for step in range(7)]).tolist()) == sorted(
        list(range(7)) * 3
    )


def test_batches_hold_the_rows_they_name(rows):
    batch = AnchorBatches(rows, 4, 6, 4, seed=1)(2)
    for name, array in rows._asdict().items():
        np.testing.assert_array_equal(batch[name], array[batch["rows"]])
    shapes = {name: (array.shape, array.dtype) for name, array in batch.items()}
    assert (
        shapes["anchors"] == ((4, 6), np.int32)
        and shapes["keep"] == ((4, 6), bool)
        and shapes["rows"] == ((4,), np.int32)
    )


def test_anchors_are_all_the_places_before_a_learnt_token_and_no_others():
    row = pack_rows([sample(6, 3), sample(4, 1), sample(3)], 16)
    (anchors,), (keep,) = (
        AnchorBatches(row, 1, 12, 4, seed=0)(0)[name] for name in ("anchors", "keep")
    )
    # Documents at 0 to 5, 6 to 9 and 10 to 12; the last is learnt from its first token, which
    # nothing precedes.
    assert anchors[keep].tolist() == [2, 3, 4, 6, 7, 8, 10, 11] and (anchors[~keep] == 0).all()
    some = [AnchorBatches(row, 1, 3, 4, seed=0)(step) for step in range(200)]
    drawn = np.concatenate([batch["anchors"][0] for batch in some])
    assert all((np.diff(batch["anchors"][0]) > 0).all() and batch["keep"].all() for batch in some)
    values, counts = np.unique(drawn, return_counts=True)
    assert (
        values.tolist() == [2, 3, 4, 6, 7, 8, 10, 11] and counts.min() > 45 and counts.max() < 105
    )


def test_files_become_rows(tmp_path, capsys):
    records = [
        {"text": "On day one the sea was calm. " * 20},
        {"prompt": "2 + 2?", "response": "4"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records * 3))
    options = DataOptions((path,), length=64)
    rows = load_packed_rows(options, "mini")
    assert rows.tokens.shape[1] == 64 and rows.segments.max() > 1
    assert "6 samples, 3 of them longer than a row of 64, 0 left out" in capsys.readouterr().out
    for array, again in zip(rows, load_packed_rows(options, "mini"), strict=True):
        np.testing.assert_array_equal(array, again)
    assert len(load_packed_rows(DataOptions((path,), length=64, rows=2), "mini").tokens) == 2
    load_packed_rows(DataOptions((path,), length=64, limit=2), "mini")
    assert "2 samples, 1 of them" in capsys.readouterr().out.splitlines()[-1]


def test_domains_are_balanced_by_tokens_without_repetition():
    samples = (
        [sample(10, domain="a")] * 40 + [sample(5, domain="b")] * 40 + [sample(9, domain="c")] * 40
    )
    chosen = balance(samples, {"a": 0.25, "b": 0.75}, seed=0)
    sizes = {name: sum(len(s.tokens) for s in chosen if s.domain == name) for name in "abc"}
    assert sizes["b"] == 200 and abs(sizes["a"] - 200 / 3) < 10 and sizes["c"] == 0
    with pytest.raises(DataError, match="no domain 'd': it has a, b, c"):
        balance(samples, {"d": 1.0}, seed=0)
    with pytest.raises(DataError, match="share of domain 'a' is 0"):
        balance(samples, {"a": 0.0}, seed=0)


def test_options_out_of_range_are_named(rows, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": [1, 2, 3, 4], "prompt_length": 3}\n')
    for options, message in (
        (DataOptions(()), "no data files"),
        (DataOptions((path,), length=1), "length is 1"),
        (DataOptions((path,), limit=0), "limit is 0"),
        (DataOptions((path,), length=3), "no sample has a token to learn among its first 3"),
    ):
        with pytest.raises(DataError, match=message):
            load_packed_rows(options, None)
    for arguments, message in (
        ((0, 1, 4), "batch_size is 0"),
        ((1, 0, 4), "anchors is 0"),
        ((1, 1, 17), "block_size is 17"),
    ):
        with pytest.raises(DataError, match=message):
            AnchorBatches(rows, *arguments, seed=0)
