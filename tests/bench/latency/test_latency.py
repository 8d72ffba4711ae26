"""`bench latency` on a toy architecture: every figure is there, acceptance is replayed, mistakes
are refused.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench import architectures
from jaxspec.bench.latency import cell as latency_cell
from jaxspec.bench.latency import forced as latency_forced
from jaxspec.bench.latency import goals
from jaxspec.bench.latency import latency_options as latency_settings
from jaxspec.bench.latency import latency_tables as latency_table
from jaxspec.bench.latency import measure_latency as latency
from jaxspec.bench.latency.count_kernels import count_kernels
from jaxspec.bench.latency.goals import measure_draft_cost
from jaxspec.bench.latency.pieces import (
    TreeMethod,
    make_random_cache,
    make_random_draft,
    make_request,
    make_state,
    make_tree_config,
)
from jaxspec.bench.latency.steps import order_steps
from jaxspec.bench.measure.phases import PIECES
from jaxspec.cli import main as cli
from jaxspec.cli.shared.errors import USER_ERROR
from jaxspec.core.config import TargetConfig

TOY = TargetConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=16,
    vocab_size=64,
    tie_embeddings=True,
    max_positions=256,
)
COLUMNS = [
    "context",
    "rows",
    "ar ms",
    *(f"{piece} ms" for piece in PIECES),
    "round ms",
    "verify/ar",
    "round/ar",
    "drafting",
    "depth",
    "c",
    "overhead",
]
COLUMNS += ["kernels", "% of floor", "forced tok/s", "tok/round", "speed-up"]


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(architectures.ARCHITECTURES, "toy", TOY)
    monkeypatch.setitem(latency_settings.HEADS, "toy", {"block_size": 4, "drafter_layers": 1})
    monkeypatch.setitem(latency.CEILING_SIZES, "cpu", (1, 32))
    monkeypatch.setitem(latency_cell.TIMES, "cpu", (2, 3, 4))


def run(capsys, *arguments):
    status = cli.main(["bench", "latency", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_cost_of_a_drafted_token_by_hand():
    """Drafting takes 1 + 0.5 of 10 ms, for three tokens: c is 1.5 / 30."""
    cell = {
        "draft": {"samples": [1.0, 2.0], "depth": 3},
        "absorb": {"samples": [0.5, 1.0]},
        "verify": {"samples": [10.0, 20.0]},
    }
    depth, cost = measure_draft_cost(cell)
    assert depth == 3 and cost == pytest.approx(0.05)
    assert measure_draft_cost({"verify": cell["verify"]}) == (None, None)


@pytest.mark.slow
def test_a_width_of_one_row_is_the_plain_step(capsys, tmp_path):
    out = tmp_path / "out.json"
    status, printed, _ = run(
        capsys, "toy", "--layers", 1, "--widths", 1, "--contexts", 20, "--json", out
    )
    report = json.loads(out.read_text())
    assert (
        status == 0
        and report["settings"]["target_layers"] == 1
        and "toy (1 of 2 layers), jetspec, float32, batch 1" in printed
    )
    assert [one["piece"] for one in report["records"]] == ["ar", "verify", "commit"] and not report[
        "skipped"
    ]
    assert {len(one["samples"]) for one in report["records"]} == {5}
    attention = report["attention"][0]
    assert attention["kernel"] == "blocks"
    assert attention["reference_ms"] > 0 and attention["kernel_ms"] > 0
    assert shown_rounds(printed)[0] == COLUMNS and len(shown_rounds(printed)[1]) == len(COLUMNS)


def shown_rounds(printed: str) -> list[list[str]]:
    """Cells of the table of rounds."""
    table = next(part for part in printed.split("\n\n") if part.startswith("context  rows  ar ms"))
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.splitlines()
    ]


@pytest.mark.slow
def test_every_figure_is_measured_and_shown(capsys, tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    given = ["toy", "--widths", "1,4", "--contexts", "20", "--repeats", 2, "--json", out]
    status, printed, _ = run(
        capsys, *given, "--force-acceptance", "[0, 0.5, 0, 0.5]", "--plot", picture
    )
    report = json.loads(out.read_text())
    assert status == 0 and picture.stat().st_size > 0 and not report["skipped"]
    assert {"device", "versions", "dtype", "ceilings", "memory_bytes", "seconds"} <= set(report)
    assert "toy, jetspec, float32, batch 1" in printed
    records = {(one["width"], one["piece"]): one for one in report["records"]}
    assert set(records) == {(1, piece) for piece in ("ar", "verify", "commit")} | {
        (4, piece) for piece in ("ar", *PIECES, "round", "forced")
    }
    for one in records.values():
        assert (
            0 < one["quartiles"][0] <= one["ms"] <= one["quartiles"][1] and len(one["samples"]) == 2
        )
        # A single row is where it belongs: nothing is left of its loop.
        in_place = (one["width"], one["piece"]) == (1, "commit")
        assert in_place or one["kernels"] > 0
        assert (one["floor_ms"] is None) == (one["piece"] == "tree")
    forced, verify = records[4, "forced"], records[4, "verify"]
    assert forced["tokens_per_round"] == 2 and forced["tokens_per_second"] == pytest.approx(
        2000 / forced["ms"]
    )
    assert verify["percent_of_floor"] == pytest.approx(100 * verify["floor_ms"] / verify["ms"])
    assert (
        verify["cached"]
        and records[4, "round"]["bytes"] > verify["bytes"] > records[4, "draft"]["bytes"]
    )
    assert [one["rows"] for one in report["attention"]] == [1, 4]
    assert [len(row) for row in shown_rounds(printed)] == 3 * [
        len(COLUMNS)
    ] and "-" not in shown_rounds(printed)[2]


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "steps"), [("specblock", 1), ("eagle3-dynamic/d3/w2", 2)])
def test_trees_that_grow_with_their_drafter_are_timed(capsys, tmp_path, method, steps):
    out = tmp_path / "out.json"
    given = ["toy", "--layers", 1, "--widths", 8, "--contexts", 20, "--repeats", 1, "--json", out]
    status, printed, error = run(capsys, *given, "--method", method, "--force-acceptance", 2)
    assert status == 0, error
    report = json.loads(out.read_text())
    assert not report["skipped"] and f"toy (1 of 2 layers), {method}, float32" in printed
    records = {one["piece"]: one for one in report["records"]}
    assert set(records) == {"ar", *PIECES, "round", "forced"} - {"rank"}
    assert records["draft"]["draft_steps"] == steps and records["draft"]["floor_ms"] is None
    assert records["forced"]["tokens_per_round"] == 2
    drafted = sum(records[name]["ms"] for name in ("draft", "tree", "absorb"))
    share = drafted / (drafted + records["verify"]["ms"] + records["commit"]["ms"])
    heads, cells = shown_rounds(printed)
    assert cells[heads.index("drafting")] == f"{100 * share:.0f}%"


@pytest.mark.thorough
def test_rounds_commit_what_the_histogram_says():
    spec = architectures.architecture("toy", block_size=4, drafter_layers=1)
    spec = latency_settings.shorten_target(spec, 1)
    params, config = (
        architectures.random_params(spec, jnp.float32),
        make_tree_config(TreeMethod("jetspec"), 4),
    )
    caches = [
        make_random_cache(spec.target, 2, 64, jnp.float32),
        make_random_draft(params, "jetspec", 2, 64),
    ]
    state = make_state(params, config, *caches, context=20, room=40)
    lengths = latency_forced.order_histogram((0, 0.5, 0.25, 0, 0.25), 8, longest=4)
    assert sorted(lengths) == [1, 1, 1, 1, 2, 2, 4, 4] and lengths.tolist() != sorted(lengths)
    after = latency_forced.run_forced(
        params, make_request(2), state, jnp.asarray(lengths), config=config
    )
    np.testing.assert_array_equal(after.round_emitted[:, :8], [lengths] * 2)
    np.testing.assert_array_equal(after.emitted - 1, [lengths.sum()] * 2)
    np.testing.assert_array_equal(after.cache.length, [20 + lengths.sum()] * 2)
    np.testing.assert_array_equal(after.draft.length, after.cache.length)


def test_histograms(tmp_path):
    read = latency_forced.read_histogram
    assert read("2.25") == (0, 0, 0.75, 0.25) and read("3") == (0, 0, 0, 1, 0)
    file = tmp_path / "hist.json"
    file.write_text('{"accept_hist": [0, 30, 10]}')
    assert read(str(file)) == read("[0, 0.75, 0.25]") == (0, 0.75, 0.25)
    assert latency_forced.order_histogram((0, 1 / 3, 2 / 3), 5, 2).sum() == 8
    with pytest.raises(
        ValueError, match="rounds of 5 tokens, but trees of this width commit at most 4"
    ):
        latency_forced.order_histogram((0, 0.5, 0, 0, 0, 0.5), 4, longest=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen9"], "unknown architecture 'qwen9': choose one of qwen3-0.6b"),
        (["toy", "--widths", "4,0"], "width 0: give 1 to 1024"),
        (["toy", "--contexts", "1k"], "context 1024: toy has 256 positions"),
        (["toy", "--layers", 5], "layers is 5: toy has 2"),
        (["toy", "--batch", 0], "batch is 0: give more than 0"),
        (["toy", "--method", "falcon"], "unknown drafter 'falcon': choose one of ar, jetspec"),
        (["toy", "--method", "eagle3-dynamic@9"], "--widths gives the rows"),
        (["toy", "--method", "eagle3-tall"], "unknown method 'eagle3-tall'"),
        (["toy", "--repeats", 0], "repeats is 0: give more than 0"),
        (
            ["toy", "--force-acceptance", "[0, 0.5, 0.4]"],
            "sums to 0.9: shares of rounds must sum to 1",
        ),
        (["toy", "--force-acceptance", "[0.5, 0.5]"], "entry 0 must be 0"),
        (
            ["toy", "--force-acceptance", "0.5"],
            "acceptance length 0.5: every round commits at least 1",
        ),
        (
            ["toy", "--force-acceptance", "many"],
            "--force-acceptance many: give a mean length",
        ),
        (
            ["toy", "--force-acceptance", '[0, "1"]'],
            "expected a number, or a list of shares",
        ),
        (["toy", "--json", "/no/such/folder/o.json"], "no directory /no/such/folder"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == USER_ERROR and out == ""
    assert err.startswith("jaxspec: error: ") and err.count("\n") == 1 and message in err, err


def test_what_does_not_fit_is_named(monkeypatch):
    settings, spec = latency.resolve_options(
        latency.LatencyOptions("toy", widths=(4,), contexts=(200,), minutes=1e-9)
    )
    weights = sum(4 * leaf.size for leaf in jax.tree.leaves(architectures.abstract_params(spec)))
    report = latency.measure_latency(settings)
    assert report["records"] == [] and len(report["skipped"]) == 2
    assert "skipped: round, width 4, context 200: no time left" in latency_table.render_latency(
        report
    )
    monkeypatch.setattr(latency, "find_memory_bytes", lambda: weights + 1)
    report = latency.measure_latency(settings)
    assert report["skipped"] == ["context 200: takes 0.0 GB, 0.0 GB are there"]
    monkeypatch.setattr(latency, "find_memory_bytes", lambda: weights - 1)
    with pytest.raises(
        ValueError,
        match="toy takes 0.0 GB in float32, and 0.0 GB are free: choose a smaller --arch",
    ):
        latency.measure_latency(settings)


def test_ratios_are_of_samples_taken_in_turn():
    cell = {
        name: {"samples": samples}
        for name, samples in (("ar", [1, 10, 2]), ("round", [2, 30, 8]), ("draft", [1, 5, 0]))
    }
    assert (
        goals.compare_piece(cell, "round", ["ar"]) == 3
        and goals.compare_piece(cell, "round", ["ar", "draft"]) == 2
    )
    assert goals.measure_round_overhead(cell) is None
    cell |= {"verify": {"samples": [0, 0, 4]}, "absorb": {"samples": [0, 10, 1]}}
    assert goals.measure_round_overhead(cell) == pytest.approx(100)


def test_the_goals_are_measured_first():
    steps = order_steps([(1024,), (8192,)], (1, 64, 256))
    assert steps[:3] == [
        ("round", (1024,), 64),
        ("round", (1024,), 256),
        ("attention", (1024, 8192), 64),
    ]
    assert len(steps) == len(set(steps)) == 9


def test_kernels_are_counted_in_the_loop():
    def body(i, x):
        y = jax.lax.fori_loop(0, 3, lambda j, y: jnp.sin(y @ y), x)
        return jax.lax.cond(x[0, 0] > 0, lambda: y @ x, lambda: y)

    text = (
        jax.jit(lambda x, n: jax.lax.fori_loop(0, n, body, x))
        .lower(jnp.ones((8, 8)), 5)
        .compile()
        .as_text()
    )
    alone = (
        jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda i, x: x @ x, x))
        .lower(jnp.ones((8, 8)), 5)
        .compile()
        .as_text()
    )
    assert count_kernels(jax.jit(jnp.sin).lower(jnp.ones(3)).compile().as_text()) is None
    assert count_kernels(text) > count_kernels(alone) >= 1
