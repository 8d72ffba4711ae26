"""The study of rounding counts texts and choices that differ from the full model's."""

import json

import numpy as np
import pytest

import jaxspec
from benchmarks.__main__ import main
from benchmarks.latency.rounding_command import VARIANTS, compare


@pytest.mark.thorough
def test_a_table_of_all_variants(capsys, tmp_path):
    out = tmp_path / "out.json"
    arguments = ["rounding", "mini", "--limit", "1", "--max-new-tokens", "12", "--json", str(out)]
    assert main(arguments) == 0
    assert "12" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert [one["variant"] for one in report["variants"]] == list(VARIANTS)
    assert all(0 <= one["other_choices"] <= 1 for one in report["variants"])


def test_the_same_model_differs_nowhere_and_another_text_does():
    params = jaxspec.load("mini", drafter="ar")
    prompt = [5, 6, 7]
    text = list(jaxspec.decode(params, prompt, drafter="ar", max_new_tokens=10).tokens)
    same = {"equal": 1, "first_difference": 10.0, "other_choices": 0.0}
    assert compare(params, [prompt], [text]) == same
    changed = [*text[:6], (text[6] + 1) % 100, *text[7:]]
    found = compare(params, [prompt], [changed])
    assert found["equal"] == 0 and found["first_difference"] == 6
    assert found["other_choices"] >= np.float64(0.1)
