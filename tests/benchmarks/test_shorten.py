"""What is kept of benchmark results in version control."""

from __future__ import annotations

import json

from benchmarks.__main__ import main
from benchmarks.shorten import dump, shorten

RESULT = {
    "method": "chain",
    "mean_acceptance_length": 3.123456789,
    "rounds": 12,
    "acceptance_rate_per_pos": [0.5, 0.25],
    "ms_prefill": 1.0,
}
REPORT = {
    "options": {"seed": 0},
    "temperatures": [
        {
            "rounds": [{"raw": 1}],
            "results": [RESULT | {"domain": "all"}, RESULT | {"domain": "math"}],
        }
    ],
}


def test_raw_lists_go_and_domains_keep_their_main_figures():
    (one,) = shorten(REPORT)["temperatures"]
    assert "rounds" not in one
    whole, math = one["results"]
    assert whole["rounds"] == 12 and whole["mean_acceptance_length"] == 3.1235
    assert "acceptance_rate_per_pos" not in whole and whole["ms_prefill"] == 1.0
    assert "ms_prefill" not in math and math["mean_acceptance_length"] == 3.1235


def test_a_result_is_a_line(tmp_path):
    text = dump(shorten(REPORT))
    assert json.loads(text) == shorten(REPORT)
    assert sum('"method"' in line for line in text.splitlines()) == 2
    raw, out = tmp_path / "raw.json", tmp_path / "out.json"
    raw.write_text(json.dumps(REPORT))
    assert main(["shorten", str(raw), str(out)]) == 0 and out.read_text() == text
