"""The rules that decide claims, on reports made by hand."""

import numpy as np
import pytest

from benchmarks.reproduce.claim import CONFIRMED, MIXED, REFUTED, UNDECIDED
from benchmarks.reproduce.decide import (
    blocks,
    costs,
    decodes,
    devices,
    gaps,
    learned,
    phases,
    recipes,
    streams,
    sweeps,
    trees,
)
from benchmarks.reproduce.decide.rules import Figure, above, below, combine, near, ordered
from jaxspec.bench.report.exports import file_name


@pytest.mark.parametrize(
    ("interval", "over", "under"),
    [
        ((1.1, 1.3), CONFIRMED, REFUTED),
        ((0.7, 0.9), REFUTED, CONFIRMED),
        ((0.9, 1.2), UNDECIDED, UNDECIDED),
    ],
)
def test_an_interval_decides(interval, over, under):
    figure = Figure("", sum(interval) / 2, interval)
    assert above(figure) == over and below(figure) == under


def test_without_an_interval_the_value_decides():
    assert above(Figure("", 1.01)) == CONFIRMED and above(Figure("", 0.99)) == REFUTED
    assert below(Figure("", 2.0), 2.5) == CONFIRMED and below(Figure("", 3.0), 2.5) == REFUTED


def test_equality_needs_the_whole_interval_within_the_margin():
    assert near(Figure("", 1.0, (0.97, 1.04))) == CONFIRMED
    assert near(Figure("", 1.0, (0.9, 1.04))) == UNDECIDED
    assert near(Figure("", 1.2, (1.1, 1.3))) == REFUTED


def test_verdicts_that_differ_are_mixed():
    assert combine([CONFIRMED, CONFIRMED]) == CONFIRMED
    assert combine([CONFIRMED, REFUTED]) == MIXED == combine([CONFIRMED, UNDECIDED])
    with pytest.raises(ValueError, match="no figure was measured"):
        combine([])


def test_an_order_is_shown_with_its_figures():
    found = ordered([Figure("a", 3.0), Figure("b", 2.0)], [Figure("a / b", 1.5, (1.2, 1.8))])
    assert (found.verdict, found.ours) == (CONFIRMED, "a 3 > b 2")


def make_table(**methods):
    """A decode table of six questions: {method: (tokens a round, seconds a round)}."""
    methods = {"ar": (1.0, 1.0)} | methods
    report = {"bench": {"results": []}}
    for name, (length, seconds) in methods.items():
        tokens = [60 + 6 * number for number in range(6)]
        report[f"answers-{file_name(name)}"] = [
            {
                "category": "code" if number < 3 else "math",
                "choices": [
                    {
                        "new_tokens": [count + 1],
                        "decoding_steps": [count / length],
                        "wall_time": [seconds * count / length],
                    }
                ],
            }
            for number, count in enumerate(tokens)
        ]
        report["bench"]["results"].append(
            {
                "method": name,
                "domain": "all",
                "mean_acceptance_length": length,
                "mean_acceptance_length_ci": [0.98 * length, 1.02 * length],
                "speedup": length / seconds,
                "speedup_ci": [0.9 * length / seconds, 1.1 * length / seconds],
                "draft_share": 1 - 1 / seconds,
                "ms_draft": 1e3 * (seconds - 1),
                "ms_tree": 0.0,
                "ms_absorb": 0.0,
                "ms_verify": 1e3,
            }
        )
    return {"t": report}


def test_more_tokens_a_round_need_not_be_faster():
    reports = make_table(a=(4.0, 3.0), b=(3.0, 1.5))
    assert decodes.accepts_more("t", "a", "b")(reports).verdict == CONFIRMED
    found = decodes.faster("t", "a", "b")(reports)
    assert found.verdict == REFUTED and found.value == pytest.approx(4 / 3 * 1.5 / 3)
    assert decodes.accepts_in_order("t", ["a", "b"])(reports).verdict == CONFIRMED
    assert decodes.accepts_in_order("t", ["b", "a"])(reports).verdict == REFUTED
    assert decodes.faster_in_order("t", ["b", "a", "ar"])(reports).verdict == CONFIRMED
    assert phases.share_is_less("t", "b", "a", 0.65)(reports).verdict == CONFIRMED
    assert phases.drafting_costs_less("t", "a", "b")(reports).verdict == REFUTED
    assert decodes.accepts_alike("t", [("a", "b")], 0.1)(reports).verdict == REFUTED
    assert decodes.all_below("t", [("b", "a")], 0.8)(reports).verdict == CONFIRMED


def test_sampling_lowers_all_lengths_and_keeps_their_order():
    reports = {"t0": make_table(a=(4.0, 1), b=(3.0, 1))["t"]}
    for lengths, verdict in (((3.5, 2.0), CONFIRMED), ((2.0, 2.5), MIXED), ((4.5, 3.5), REFUTED)):
        a, b = lengths
        reports["t1"] = make_table(a=(a, 1), b=(b, 1))["t"]
        assert decodes.lower_when_sampled("t0", "t1", ["a", "b"])(reports).verdict == verdict


def test_the_largest_budget_is_found_in_the_table():
    reports = make_table(**{"x@16/w7": (3, 1), "x@64/w7": (4, 1), "y@16": (3, 1), "y@64": (3.2, 1)})
    largest = decodes.at_largest("t", "x@{}/w7", "y@{}", "x")(reports)
    assert largest.value == pytest.approx(1.25) and largest.verdict == CONFIRMED
    rows = decodes.measured_rows("x")
    assert decodes.gains_with_budget("t", "x@{}/w7", "y@{}", rows)(reports).verdict == CONFIRMED
    assert decodes.rises_with_budget("t", "x@{}/w7", "x")(reports).verdict == CONFIRMED


def make_slots_report(rates):
    slots = [{"conditional": rate} for rate in rates]
    rows = [
        {"way": "a", "budget": 16, "ratio": 2.0, "interval": [1.9, 2.1], "tokens_per_round": 3.0},
        {"way": "a", "budget": 61, "ratio": 1.02, "interval": [1.0, 1.04], "tokens_per_round": 4.0},
    ]
    classes = [{"share": share} for share in (0.7, 0.2, 0.05, 0.05)]
    report = {"ranks": {"slots": slots, "classes": classes}, "x": {"against": "b", "rows": rows}}
    return {"branching": {"report": report}}


def test_acceptance_recovers_where_a_block_begins():
    reports = make_slots_report([0.8, 0.7, 0.6, 0.5, 0.9, 0.7, 0.6, 0.4])
    # The fourth token ends a block of four, the fifth begins the next one.
    found = trees.recovers(4)(reports)
    assert found.verdict == CONFIRMED and found.value == pytest.approx(0.9 / 0.5)
    assert trees.recovers(5)(reports).verdict == REFUTED
    assert trees.slot_accepts(8, 0.5)(reports).verdict == REFUTED
    assert trees.first_class_is_most_frequent(0.5)(reports).verdict == CONFIRMED


def test_trees_are_compared_at_the_largest_budget():
    reports = make_slots_report([0.8] * 8)
    assert trees.way_beats("x", "a")(reports).verdict == UNDECIDED
    assert trees.way_beats("x", "a", 0.98)(reports).verdict == CONFIRMED
    assert trees.ways_are_alike("x", "a", 0.05)(reports).verdict == CONFIRMED


def test_rounds_that_accept_as_the_papers():
    def report(ms, drafting):
        names = ("draft", "verify", "absorb", "tree", "commit")
        pieces = [{"piece": name, "ms": 1.0} for name in names]
        pieces[0]["ms"] = drafting
        forced = {"piece": "forced", "ms": ms, "quartiles": [ms - 0.5, ms + 0.5]}
        records = [*pieces, forced | {"tokens_per_round": 4.0}]
        records = [one | {"context": 256, "width": 61} for one in records]
        return {"settings": {"arch": "mini"}, "records": records}

    reports = {"latency": {"a": report(10.0, 1.0), "b": report(20.0, 9.0)}}
    found = phases.faster_at_equal_acceptance("a", "b")(reports)
    assert found.verdict == CONFIRMED and found.value == pytest.approx(2.0)
    assert phases.share_is_less_at_equal_shapes("a", "b", 0.75)(reports).verdict == CONFIRMED
    assert phases.share_is_less_at_equal_shapes("b", "a", 1.0)(reports).verdict == REFUTED


def test_errors_of_costs():
    measured = {"widths": [1, 8], "bare": [[9.0], [2.0]], "seconds": [[5.0], [4.0]]}
    about = {"root_mean_square_errors": {"bare": 0.03, "fit": 0.003}, "measured": measured}
    reports = {"calibration": {"costs": {"about": about}}}
    assert costs.fit_cuts_the_error(0.8)(reports).value == pytest.approx(0.9)
    # One row is no verification of a tree.
    assert costs.bare_roofline_underestimates()(reports).verdict == CONFIRMED


def test_cost_of_a_drafted_token_by_block():
    flat = make_table(**{f"j-chain@{b}/b{b}": (2, 1.5) for b in (4, 16)})
    linear = make_table(**{f"j-chain@{b}/b{b}": (2, 1 + b / 8) for b in (4, 16)})
    rule = phases.cost_falls_with_block("t", "j", (4, 16))
    assert rule(flat).verdict == CONFIRMED and rule(linear).verdict == REFUTED
    assert phases.draft_time_is_flat("t", "j", (4, 16), 1.5)(linear).verdict == REFUTED


def make_sweep(speeds):
    """A sweep's report: {domain: {rows: speed-up}}, with intervals of 2 %."""
    results = [
        {
            "method": f"d@{rows}",
            "domain": domain,
            "speedup": speed,
            "speedup_ci": [0.98 * speed, 1.02 * speed],
            "mean_acceptance_length": 1 + np.log2(rows),
        }
        for domain, own in speeds.items()
        for rows, speed in own.items()
    ]
    return {"s": {"report": {"temperatures": [{"results": results}]}}}


def test_a_peak_lies_inside_the_range():
    inside = make_sweep({"code": {2: 1.0, 8: 1.4, 32: 1.1}, "math": {2: 1.0, 8: 1.5, 32: 1.2}})
    assert sweeps.peaks("s")(inside).verdict == CONFIRMED
    assert sweeps.peaks("s")(make_sweep({"code": {2: 1.0, 8: 1.2, 32: 1.4}})).verdict == REFUTED
    assert sweeps.peak_moves("s")(inside).verdict == REFUTED
    moved = make_sweep({"code": {2: 1.5, 8: 1.2, 32: 1.0}, "math": {2: 1.0, 8: 1.2, 32: 1.5}})
    assert sweeps.peak_moves("s")(moved).verdict == CONFIRMED
    close = make_sweep({"code": {2: 1.5, 8: 1.49, 32: 1.0}, "math": {2: 1.0, 8: 1.49, 32: 1.5}})
    assert sweeps.peak_moves("s")(close).verdict == UNDECIDED


def test_a_controller_against_budgets_and_beams():
    one = make_sweep({"all": {2: 1.0, 64: 1.3}})["s"]["report"]["temperatures"][0]
    margins = {"ar": [1.4, 1.3, 1.5], "d@2": [1.2, 1.1, 1.3], "d@64": [1.1, 1.02, 1.2]}
    one["hindsight"] = [
        {"policy": "d@64/best", "domain": "mean", "ratio": 0.99, "ratio_ci": [0.98, 1.0]},
        {"policy": "d@64/best", "domain": "single", "margins": margins},
    ]
    one["best_first_over_beam"] = [
        {"method": "d@2", "domain": "all", "ratio": 1.0, "ratio_ci": [0.9, 1.1]},
        {"method": "d@64", "domain": "all", "ratio": 1.07, "ratio_ci": [1.04, 1.1]},
    ]
    one["surrogate"] = [{"domain": "all", "estimate": "raw", "rounds": 9, "pearson": 0.8}]
    one["surrogate"][0]["pearson_ci"] = [0.75, 0.85]
    reports = {"s": {"report": {"temperatures": [one]}}}
    assert sweeps.tracks("s", "best", 0.97)(reports).verdict == CONFIRMED
    found = sweeps.faster_than_largest("s", "best")(reports)
    assert found.verdict == CONFIRMED and found.value == 1.1
    assert sweeps.beats_beam("s")(reports).verdict == CONFIRMED
    assert sweeps.correlates("s", "pearson", 0.7)(reports).verdict == CONFIRMED
    assert sweeps.saturates("s")(reports).verdict == REFUTED  # five doublings at once


def make_gaps(first, second):
    results = [
        {
            "drafter": name,
            "prompts": [{"first": gap} for gap in own],
            "rounds": {"bins": [{"bin": "a", "trees": 20, "accepted": 3.0}, tail]},
        }
        for name, own, tail in (
            ("one", first, {"bin": "b", "trees": 20, "accepted": 1.0}),
            ("two", second, {"bin": "b", "trees": 9, "accepted": 9.0}),
        )
    ]
    return {"gaps": {"report": {"results": results}}}


def test_gaps_are_compared_on_the_same_prompts():
    reports = make_gaps([9.0, 8.0, 12.0, 7.0, 9.5], [1.0, 2.0, 4.0, 3.0, 2.5])
    assert gaps.gap_is_larger("one", "two", "median")(reports).verdict == CONFIRMED
    assert gaps.gap_is_larger("two", "one", "mean")(reports).verdict == REFUTED
    assert gaps.gap_is_larger_on_most("one", "two")(reports).verdict == CONFIRMED
    assert gaps.faithful_share_is_larger("two", "one")(reports).verdict == CONFIRMED
    # The second drafter's last bin has too few trees to count.
    assert gaps.accepted_falls_with_gap(("one", "two"))(reports).verdict == CONFIRMED


def make_slots(**speeds):
    """An engine's records: {rule with _ for blanks: speeds at 1 and 16 slots}."""
    records = [
        {"slots": slots, "rule": rule.replace("_", " "), "tokens_per_second": speed}
        for rule, own in speeds.items()
        for slots, speed in zip((1, 16), own, strict=True)
    ]
    return {"report": {"records": records}}


def test_budgets_by_batch_and_device():
    falling = make_slots(ar=(1, 10), fixed_8=(2, 30), fixed_128=(4, 8))
    flat = make_slots(ar=(1, 10), fixed_8=(2, 8), fixed_128=(4, 9))
    reports = {"a": falling, "b": flat}
    assert devices.best_budget_falls("a")(reports).verdict == CONFIRMED
    assert devices.best_budget_falls("b")(reports).verdict == REFUTED
    assert devices.large_budget_is_best("a", 1)(reports).verdict == CONFIRMED
    assert devices.faster_than_plain("a", 16)(reports).verdict == REFUTED
    assert devices.faster_than_plain("a", 16, "fixed 8")(reports).verdict == CONFIRMED
    differs = devices.best_budget_differs({"x": "a", "y": "b"}, (1, 16))(reports)
    assert differs.verdict == CONFIRMED and "x, 16 slots: 8" in differs.ours
    both = devices.all_of(devices.best_budget_falls("a"), devices.best_budget_falls("b"))
    assert both(reports).verdict == MIXED


def test_the_share_of_a_drafters_pass_falls_with_its_target():
    rule = devices.drafting_share_falls("qwen3-8b", "qwen3-32b", "a100")
    slower = {"plans": {"qwen3-8b": [{"round": 0.01}], "qwen3-32b": [{"round": 0.04}]}}
    assert rule(slower).verdict == CONFIRMED
    alike = {"plans": {"qwen3-8b": [{"round": 0.01}], "qwen3-32b": [{"round": 0.015}]}}
    assert rule(alike).verdict == REFUTED  # the drafter itself is nearly twice as large


def make_stream(**arms):
    """A stream's report: {arm: rounds of each query}, all of 60 tokens; four queries a pass."""
    runs = [
        {
            "arm": arm,
            "seed": seed,
            "queries": [
                {
                    "tokens": 60,
                    "rounds": count,
                    "passes": 0,
                    "reads": 0,
                    "version": int(arm != "never"),
                    "block": number // 4,
                    "domain": "code" if number % 2 else "math",
                    "decode_seconds": 1.0,
                    "restored": False,
                }
                for number, count in enumerate(rounds)
            ],
        }
        for arm, rounds in arms.items()
        for seed in (0, 1, 2)
    ]
    model = {"architecture": "qwen3-8b", "device": "h100"}
    return {"p": {"report": {"runs": runs, "model": model}}}


def test_streams_by_modelled_seconds():
    reports = make_stream(never=[20, 30] * 4, osd=[20, 29, 20, 29, 15, 22, 15, 22])
    found = streams.learns_faster("p", "osd", "never")(reports)
    assert found.verdict == CONFIRMED and found.value == pytest.approx(200 / 172)
    idle = streams.learns_faster("p", "never", "osd")(reports)
    assert idle == (UNDECIDED, "never made no update in 24 queries of p", None, None)
    grown = streams.gain_grows("p", "osd")(reports)
    assert grown.verdict == CONFIRMED and grown.value == pytest.approx((100 / 74) / (100 / 98))
    assert streams.two_devices_gain_little("p", "osd", 0.03)(reports).verdict == CONFIRMED


def test_the_head_is_cheaper_or_is_not():
    parts = {"head": {"seconds": 0.01}, "full": {"seconds": 0.09}}
    reports = {"updates": {"report": {"parts": parts}}}
    assert streams.head_is_cheaper(8.0)(reports).verdict == CONFIRMED
    assert streams.head_is_cheaper(10.0)(reports).verdict == REFUTED


def make_runs(**rounds):
    """Runs of recipes: {loss: rounds of three seeds}, 100 tokens of each of four prompts."""
    return {
        "r": {
            f"{loss}-{seed}": {
                "recipe": {"loss": loss, "seed": seed},
                "counts": {"tree@8": {"code": [[100, count]] * 2, "math": [[100, count + 1]] * 2}},
            }
            for loss, own in rounds.items()
            for seed, count in enumerate(own)
        }
    }


def test_recipes_are_compared_over_seeds_and_prompts():
    fkl, rkl = recipes.recipe(loss="fkl"), recipes.recipe(loss="rkl")
    apart = make_runs(fkl=[20, 21, 22], rkl=[40, 41, 42])
    found = recipes.trained_better("r", fkl, rkl, "tree@8")(apart)
    assert found.verdict == CONFIRMED and "3 seeds" in found.ours
    assert recipes.collapses("r", rkl, fkl, 0.7, "tree@8")(apart).verdict == CONFIRMED
    torn = make_runs(fkl=[20, 21, 60], rkl=[40, 41, 22])
    assert recipes.trained_better("r", fkl, rkl, "tree@8")(torn).verdict == UNDECIDED
    assert recipes.trained_alike("r", fkl, rkl, 0.05, "tree@8")(torn).verdict == UNDECIDED
    with pytest.raises(ValueError, match="no seed has both recipes"):
        recipes.trained_better("r", fkl, recipes.recipe(loss="ce"), "tree@8")(apart)


def test_extreme_classes_are_easiest():
    def run(scores):
        classes = {"classes": [{"f1": score} for score in scores]}
        return {"recipe": {"variant": "paper"}, "held_out": classes}

    runs = {"x": run([0.9, 0.3, 0.2, 0.8]), "y": run([0.9, 0.3, None, 0.5])}
    rule = recipes.extremes_are_easiest("c", recipes.recipe(variant="paper"))
    assert rule({"c": runs}).verdict == CONFIRMED
    runs["y"] = run([0.9, 0.3, 0.6, 0.5])
    assert rule({"c": runs}).verdict == MIXED


def make_ways(**ways):
    """A comparison of trained ways: {name: (ratio to the constant, its seeds' ratios)}."""
    first = next(iter(ways.values()))[0]
    report = {"static": {"acceptance_length": 4.0}, "oracle": {}}
    for name, (ratio, seeds) in ways.items():
        report[name] = {
            "over_static": [ratio, [ratio - 0.01, ratio + 0.01]],
            "over_first": [ratio / first, [ratio / first - 0.01, ratio / first + 0.01]],
            "each": seeds,
            "acceptance_length": 3.9,
        }
    return {"w": {"report": report}}


def test_trained_policies_by_modelled_time():
    seeds = [1.02, 1.04, 1.03]
    reports = make_ways(turns=(1.03, seeds), apart=(1.0, [1.0, 1.0, 1.0]), near=(1.029, seeds))
    assert learned.over_static("w", "turns")(reports).verdict == CONFIRMED
    assert learned.over_static("w", "apart")(reports).verdict == UNDECIDED
    assert learned.first_beats("w", "apart")(reports).verdict == CONFIRMED
    assert learned.first_beats("w", "near")(reports).verdict == UNDECIDED
    assert learned.way_beats("w", "turns", "apart")(reports).verdict == CONFIRMED
    assert learned.alike("w", "near", "turns", 0.015)(reports).verdict == CONFIRMED
    assert learned.faster_with_fewer_tokens("w", "turns")(reports).verdict == CONFIRMED


def test_rounds_that_trained_policies_choose():
    def way(draft, verify, **sides):
        sides = {k: {"steps": s, "rows": r, "few_steps": f} for k, (s, r, f) in sides.items()}
        return {"draft_ms": draft, "verify_ms": verify, "rounds": {"committed": sides}}

    turns = way(1.0, 3.0, hard=(4.0, 50.0, 0.6), easy=(8.0, 40.0, 0.1))
    reports = make_ways(turns=(1.03, [1.03]))
    reports["w"]["rounds"] = {"static": way(2.0, 2.0), "turns": turns}
    reports["w"]["report"]["turns"]["domains"] = {"code": 1.1, "math": 1.2, "prose": 0.9}
    assert learned.part_falls("w", "turns", "draft_ms")(reports).verdict == CONFIRMED
    assert learned.part_falls("w", "turns", "verify_ms")(reports).verdict == REFUTED
    assert learned.easy_exceeds_hard("w", "turns", "steps")(reports).value == 2.0
    assert learned.easy_exceeds_hard("w", "turns", "rows")(reports).verdict == REFUTED
    assert learned.hard_rounds_are("w", "turns", "few_steps", 0.5)(reports).verdict == CONFIRMED
    found = learned.faster_on_most("w", "turns", 0.9)(reports)
    assert found.verdict == REFUTED and found.ours.startswith("2 of 3 domains")


def make_clock(**speeds):
    results = [
        {
            "method": name.replace("_", "-"),
            "domain": "all",
            "clock": "whole",
            "speedup": speed,
            "speedup_ci": [speed - 0.02, speed + 0.02],
            "against": speed / 1.04,
            "against_ci": [speed / 1.04 - 0.02, speed / 1.04 + 0.02],
            "own_share": 0.01,
        }
        for name, speed in speeds.items()
    ]
    return {"c": {"report": {"temperatures": [{"results": results}]}}}


def test_trained_policies_by_the_clock():
    reports = make_clock(ar=1.0, static=1.04, ltd_0=1.1, ltd_1=1.05, svip=0.9)
    assert learned.faster_by_the_clock("c")(reports).verdict == MIXED
    assert learned.constant_beats_rules("c", ("svip",))(reports).verdict == CONFIRMED
    assert learned.fastest("c")(reports).verdict == CONFIRMED
    assert learned.fastest("c")(make_clock(ar=1.0, ltd_0=0.7)).verdict == REFUTED
    assert learned.overhead_below("c", 0.015)(reports).verdict == CONFIRMED


def make_study(ratio, seeds, labels=(5, 3, 2), sizes=(6, 8, 10)):
    row = {
        "value": 3 * ratio,
        "ratio": ratio,
        "interval": [ratio - 0.01, ratio + 0.01],
        "seeds": seeds,
    }
    return {
        "dflash": {
            "test": {
                "raw logits": {
                    "rounds": row,
                    "choice": {"value": 100.0},
                    "deployed": {"value": 97.0},
                }
            },
            "over_shuffled": {"raw logits": {"ratio": 1.0, "interval": [0.99, 1.01]}},
            "labels": list(labels),
            "sizes": list(sizes),
            "ties": 0.6,
        }
    }


def test_block_sizes():
    paper, other = make_study(0.98, [0.97, 0.99]), make_study(0.96, [0.95, 0.965])
    reports = {"blockpilot": {"report": paper, "wide": paper, "layers-1": other}}
    assert blocks.block("blockpilot", "raw logits")(reports).verdict == REFUTED
    assert blocks.paper_is_best("layers-1")(reports).verdict == CONFIRMED
    assert blocks.beats_shuffled("raw logits")(reports).verdict == UNDECIDED
    assert blocks.block_labels_vary()(reports).verdict == REFUTED  # half of them have one size
    assert blocks.block_labels_cluster(8)(reports).verdict == CONFIRMED
    assert blocks.block_prediction_is_cheap(0.02)(reports).verdict == REFUTED
