"""What other tools read, worked out by hand: definitions, Spec-Bench's answers, vLLM's names, the
report.
"""

import json

import numpy as np
import pytest

from jaxspec.bench.measure.decodes import Run
from jaxspec.bench.report.definitions import DEFINITIONS, Timed, compare_speeds, measure_acceptance
from jaxspec.bench.report.exports import (
    format_prometheus,
    make_spec_bench,
    name_as_vllm,
    write_spec_bench,
    write_vllm,
)
from jaxspec.bench.report.markdown import write_report
from jaxspec.bench.report.summary import summarise
from jaxspec.cli import main as cli
from jaxspec.cli.shared.errors import USER_ERROR
from jaxspec.io.text.prompt_files import LabelledPrompt

# A question of two turns and one of a single turn.
PROMPTS = [
    LabelledPrompt("writing", "q", 81),
    LabelledPrompt("writing", "q", 81, turn=1),
    LabelledPrompt("math", "p"),
]


def run(method, prompt, seconds, hist, tokens, drafted=0, repeat=0):
    rounds = sum(hist)
    falling = [length for length in reversed(range(len(hist))) for _ in range(hist[length])]
    return Run(
        method, prompt, repeat, tuple(tokens), rounds, drafted, hist, 0.5, seconds, tuple(falling)
    )


RUNS = [
    run("ar", 0, 6.0, (0, 6), range(7)),
    run("ar", 1, 4.0, (0, 4), range(5)),
    run("ar", 2, 8.0, (0, 8), range(9)),
    # 6 tokens in 3 rounds, 4 in 1, 8 in 4.
    run("x@4/d2", 0, 1.5, (0, 1, 1, 1, 0), range(7), 9),
    run("x@4/d2", 0, 2.5, (0, 1, 1, 1, 0), range(7), 9, repeat=1),
    run("x@4/d2", 1, 1.0, (0, 0, 0, 0, 1), range(5), 3),
    run("x@4/d2", 2, 4.0, (0, 1, 2, 1, 0), range(9), 12),
]


@pytest.fixture(scope="module")
def report():
    records = [{"temperature": 0.0} | record for record in summarise(RUNS, PROMPTS)]
    return {
        "device": {"kind": "cpu", "platform": "cpu", "count": 1, "cpus": 2},
        "versions": {"jax": "0"},
        "dtype": "float32",
        "options": {"max_new_tokens": 9},
        "repeats": 2,
        "results": records,
        "settings": {"model": "some/where/tiny"},
    }


def drafted(report, domain="all"):
    return next(r for r in report["results"] if (r["method"], r["domain"]) == ("x@4/d2", domain))


def test_definitions(report):
    found = drafted(report)
    assert found["mean_acceptance_length"] == 18 / 8 and found["mean_accepted_length"] == 10 / 8
    assert found["mean_acceptance_length_macro"] == pytest.approx((2 + 4 + 2) / 3)
    assert found["mean_accepted_length_macro"] == pytest.approx((1 + 3 + 1) / 3)
    assert found["tokens_per_verification"] == 21 / 8, "with the three tokens of the prefills"
    assert found["draft_acceptance_rate"] == 10 / 24
    assert found["acceptance_rate_per_pos"] == [6 / 8, 3 / 8, 1 / 8]
    assert found["acceptance_rate_per_pos_conditional"] == [6 / 8, 3 / 6, 1 / 3]
    assert sum(found["acceptance_rate_per_pos"]) == found["mean_accepted_length"]
    assert found["questions"] == 2 and found["prompts"] == 3
    assert found["speedup_ci"] is None and drafted(report, "writing")["speedup_ci"] is None, (
        "one question, though two turns"
    )
    # Turns of a question are summed: 10 tokens in 3 seconds against 10, and 8 in 4 against 8.
    assert found["speedup_mean_of_ratios"] == pytest.approx((10 / 3 + 2) / 2)
    ours, plain = (12 / 4 + 9 / 4.5) / 2, (12 / 11 + 9 / 8.5) / 2
    assert found["speedup_of_mean_speeds"] == pytest.approx(ours / plain)
    assert found["speedup"] == pytest.approx(18 / 7)
    assert {one.key for one in DEFINITIONS} <= set(found)


def test_definitions_where_nothing_was_drafted():
    found = measure_acceptance([(0,), (0, 0)], 0)
    assert found["mean_acceptance_length"] is None and found["draft_acceptance_rate"] is None
    assert found["acceptance_rate_per_pos"] == []
    nothing = Timed(*(np.array([value]) for value in (1.0, 0.5, 0.0, 1e-6)))
    assert compare_speeds(nothing, nothing, [0]) == {
        "speedup_mean_of_ratios": None,
        "speedup_of_mean_speeds": 1.0,
    }


def test_spec_bench_has_a_line_a_question_and_a_file_a_method(tmp_path):
    answers = make_spec_bench(PROMPTS, RUNS, "tiny", lambda ids: "".join(map(str, ids)))
    files = write_spec_bench(tmp_path / "answers.jsonl", answers)
    assert [path.name for path in files] == ["answers-ar.jsonl", "answers-x@4_d2.jsonl"]
    first, second = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert (first["question_id"], first["category"], first["model_id"]) == (
        81,
        "writing",
        "tiny-x@4/d2",
    )
    assert second["question_id"] == 1 and second["category"] == "math", (
        "numbered where the file has no names"
    )
    choice = first["choices"][0]
    assert (
        choice["turns"] == ["0123456", "01234"]
        and choice["new_tokens"] == [7, 5]
        and choice["decoding_steps"] == [3, 1]
    )
    assert choice["wall_time"] == [2.5, 1.5], "the median repeat, prefill included"
    assert choice["accept_lengths"] == [3, 2, 1, 4] and first["identical_to_ar"]
    # As its script averages: ratios of questions, and all rounds alike.
    lengths = [
        length for record in (first, second) for length in record["choices"][0]["accept_lengths"]
    ]
    assert np.mean(lengths) == 18 / 8


def test_spec_bench_tells_which_questions_differ():
    runs = [*RUNS[:-1], run("x@4/d2", 2, 4.0, (0, 1, 2, 1, 0), [*range(8), 99], 12)]
    answers = make_spec_bench(PROMPTS, runs, "tiny", str)
    assert [record["identical_to_ar"] for record in answers["x@4/d2"]] == [True, False]
    assert all(record["identical_to_ar"] for record in answers["ar"])


def test_vllm_names(report, tmp_path):
    found = {(r["method"], r["domain"]): r for r in name_as_vllm(report["results"], "tiny")}
    ours, plain = found["x@4/d2", "all"], found["ar", "all"]
    assert (
        ours["vllm:spec_decode_num_drafts"] == 8 and ours["vllm:spec_decode_num_draft_tokens"] == 24
    )
    assert ours["vllm:spec_decode_num_accepted_tokens"] == 10
    assert ours["vllm:spec_decode_num_accepted_tokens_per_pos"] == [6, 3, 1]
    # vLLM derives the same from its counters.
    assert ours["mean_acceptance_length"] == 1 + 10 / 8 and ours["draft_acceptance_rate"] == 10 / 24
    assert ours["acceptance_rate_per_pos"] == drafted(report)["acceptance_rate_per_pos"]
    assert (
        ours["ttft_ms"] == 500
        and ours["tpot_ms"] == pytest.approx(1e3 * 7 / 18)
        and ours["identical_to_ar"] is True
    )
    assert plain["vllm:spec_decode_num_drafts"] == 0 and plain["draft_acceptance_rate"] is None
    write_vllm(tmp_path / "v.prom", report["results"], "tiny")
    lines = (tmp_path / "v.prom").read_text().splitlines()
    assert lines[0].startswith("# HELP vllm:spec_decode_num_drafts_total ")
    assert lines[1] == "# TYPE vllm:spec_decode_num_drafts_total counter"
    labels = 'model_name="tiny",method="x@4/d2",domain="writing",temperature="0.0"'
    assert f"vllm:spec_decode_num_drafts_total{{{labels}}} 4" in lines
    assert f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="2"}} 1' in lines
    assert 'domain="all"' not in format_prometheus(list(found.values())), (
        "a sum over the labels must not count twice"
    )


def test_report_is_made_from_saved_json(report, tmp_path, capsys):
    saved = tmp_path / "result.json"
    saved.write_text(json.dumps(report))
    assert cli.main(["bench", "report", str(saved), "--out", str(tmp_path / "out")]) == 0
    assert "report.md" in capsys.readouterr().out
    text = (tmp_path / "out/report.md").read_text()
    assert text.startswith("# Benchmark of tiny\n")
    assert "Every method gave the tokens of `ar` on each of the 3 prompts" in text
    assert (
        "### writing (1 question, 2 turns)" in text
        and "### All domains (2 questions, 3 turns)" in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| `x@4/d2` | 2.6 | 2.57 |"))
    assert "| 2.25 |" in row and row.endswith("| yes |")
    assert all(f"- **{one.name}**: " in text for one in DEFINITIONS) and "0.75 0.38 0.12" in text
    assert "| `x@4/d2` | α_k | 0.75 | 0.38 | 0.12 |" in text
    assert "| `x@4/d2` | α_k given k - 1 | 0.75 | 0.50 | 0.33 |" in text
    for picture in ("speedups-T0.png", "acceptance-T0.png"):
        assert f"({picture})" in text and (tmp_path / "out" / picture).read_bytes()[1:4] == b"PNG"


def test_report_says_what_differs_and_reads_older_files(report, tmp_path):
    known = {
        "method",
        "domain",
        "prompts",
        "tokens_per_second",
        "speedup",
        "speedup_ci",
        "mean_acceptance_length",
    }
    known |= {"ms_per_round", "identical_to_ar", "differing_prompts", "accept_hist", "drafted"}
    old = [
        {key: value for key, value in record.items() if key in known}
        for record in report["results"]
    ]
    old[-1] |= {"identical_to_ar": False, "differing_prompts": 2}
    text = write_report({**report, "results": old}, tmp_path).read_text()
    assert (
        "**Not all tokens equal those of `ar`**: of 3 prompts they differ for `x@4/d2` on 2."
        in text
    )
    assert "| `x@4/d2` | 2.25 | 2.25 | 1.25 | - | - | - | 0.42 | 0.75 0.38 0.12 |" in text


def test_no_report_of_something_else(tmp_path, capsys):
    file = tmp_path / "x.json"
    for content, message in (("{}", "holds no results"), ("{", "is not JSON")):
        file.write_text(content)
        assert cli.main(["bench", "report", str(file), "--out", str(tmp_path / "o")]) == USER_ERROR
        assert message in capsys.readouterr().err and not (tmp_path / "o").exists()
