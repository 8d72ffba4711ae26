import gzip

import numpy as np
import pytest

from training.data.documents import DataError, MixedBatches, cut_windows, read_documents
from training.train_target import mix_lengths


def test_windows_predict_every_token_once():
    windows = cut_windows(np.arange(23), 5)
    assert windows.shape == (4, 6)
    np.testing.assert_array_equal(windows[:, 1:].ravel(), np.arange(1, 21))
    with pytest.raises(DataError, match="fewer than one window"):
        cut_windows(np.arange(5), 5)


def test_batches_depend_on_the_step_alone_and_cover_each_epoch():
    windows = {"a": np.arange(5)[:, None], "b": np.arange(10, 17)[:, None]}
    batches = MixedBatches(windows, {"a": 2, "b": 1}, seed=0)
    rows = [batches(step).ravel() for step in range(14)]
    again = MixedBatches(windows, {"a": 2, "b": 1}, seed=0)
    np.testing.assert_array_equal(again(9).ravel(), rows[9])
    assert sorted(np.concatenate([row[2:] for row in rows[:7]])) == list(range(10, 17))
    firsts = np.concatenate([row[:2] for row in rows[:5]])
    assert sorted(firsts) == sorted([*range(5), *range(5)])
    assert all((row[:2] < 5).all() and row[2] >= 10 for row in rows)


def test_halved_windows_hold_the_same_predictions():
    batches = mix_lengths(lambda step: np.arange(2 * 9).reshape(2, 9))
    assert batches(3).shape == (2, 9) and batches(4).shape == (4, 5)
    long, short = batches(3), batches(4)
    assert sorted(zip(long[:, :-1].ravel(), long[:, 1:].ravel(), strict=True)) == sorted(
        zip(short[:, :-1].ravel(), short[:, 1:].ravel(), strict=True)
    )


def test_unusable_files_are_named(tmp_path):
    with pytest.raises(DataError, match="no data file at .*pass --data"):
        read_documents(tmp_path / "none.jsonl")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"domain": "a", "text": "x"}\n{"text": "y"}\n')
    with pytest.raises(DataError, match="line 2: expected a JSON object with 'domain'"):
        read_documents(bad)
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(b'{"domain": "a", "text": "x"}\n' * 50)[:-12])
    with pytest.raises(DataError, match="short.jsonl.gz, line"):
        read_documents(short)
    array = tmp_path / "array.json"
    array.write_text('[{"domain": "a", "text": "x"},\n{"domain": "a", "text": "y"}]', "utf-8-sig")
    assert read_documents(array) == {"a": ["x", "y"]}
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no records"):
        read_documents(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="no domain 'poetry': it has a"):
        MixedBatches({"a": np.zeros((1, 2))}, {"poetry": 1}, seed=0)
