"""Studies of products and searches alone: every way is timed."""

from benchmarks.__main__ import main
from benchmarks.kernels import few_rows
from benchmarks.kernels.top_k import measure_top_k


def test_few_rows_are_timed_in_all_ways(monkeypatch):
    for name, value in (("LAYERS", 1), ("ROWS", (1, 3)), ("REPEATS", 2)):
        monkeypatch.setattr(few_rows, name, value)
    found = few_rows.measure_few_rows()
    assert {way: list(times) for way, times in found.items()} == {
        "xla": ["1", "3"],
        "1": ["3"],
        "8": ["3"],
        "16": ["3"],
        "32": ["3"],
    }
    assert 0 < found["16"]["3"]["least_ms"] <= found["16"]["3"]["ms"]
    text = few_rows.render_few_rows(found)
    assert "XLA's product, ms" in text and "transposed, ms" in text and "panels of 16, ms" in text


def test_ways_to_find_the_best_tokens(capsys):
    found = measure_top_k(2, 300, (3, 20))
    assert len(found) == 6 and found["jaxspec, k=20"]["exact"] and found["lax.top_k, k=3"]["exact"]
    assert main(["top-k", "--rows", "2", "--vocabulary", "300", "--counts", "3"]) == 0
    assert "lax.approx_max_k, k=3" in capsys.readouterr().out
