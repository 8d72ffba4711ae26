import pytest

from jaxspec.bench.measure.decodes import Run, group_methods
from jaxspec.bench.report.speed_table import tabulate_speeds
from jaxspec.bench.report.summary import summarise
from jaxspec.io.text.prompt_files import LabelledPrompt

PROMPTS = [LabelledPrompt("math", "p"), LabelledPrompt("code", "q")]


def run(
    method,
    prompt,
    repeat,
    decode_seconds,
    tokens=range(13),
    rounds=12,
    hist=(0, 12),
    prefill_seconds=1.0,
):
    return Run(
        method, prompt, repeat, tuple(tokens), rounds, 0, hist, prefill_seconds, decode_seconds
    )


AR = [
    run("ar", prompt, repeat, seconds)
    for prompt in (0, 1)
    for repeat, seconds in enumerate((6.0, 4.0, 9.0))
]
TREE = [
    run("tree", 0, repeat, seconds, rounds=4, hist=(0, 1, 1, 0, 1, 1))
    for repeat, seconds in enumerate((3.0, 2.0, 30.0))
]
TREE += [run("tree", 1, repeat, 2.0, rounds=6, hist=(0, 2, 2, 2)) for repeat in range(3)]


def records(runs, profile=None):
    return {(r["method"], r["domain"]): r for r in summarise(runs, PROMPTS, profile)}


def test_figures():
    found = records(AR + TREE)
    assert set(found) == {
        (method, domain) for method in ("ar", "tree") for domain in ("math", "code", "all")
    }
    math = found["tree", "math"]
    assert math["tokens_per_second"] == 12 / 3.0, (
        "the median repeat, without the token that the prefill draws"
    )
    assert math["tokens_per_second_with_prefill"] == 13 / 4.0
    assert math["speedup"] == 2.0
    assert math["mean_acceptance_length"] == 3.0
    assert math["accept_hist"] == [0, 1, 1, 0, 1, 1]
    assert math["ms_per_round"] == 750.0
    assert math["repeat_spread"] == pytest.approx(28 / 3)
    both = found["tree", "all"]
    assert both["tokens_per_second"] == 24 / 5.0
    assert both["speedup"] == pytest.approx((24 / 5) / (24 / 12))
    assert both["speedup_median"] == 2.5 and both["speedup_iqr"] == [2.25, 2.75]
    assert both["accept_hist"] == [0, 3, 3, 2, 1, 1]
    assert both["mean_acceptance_length"] == 2.4
    assert (
        found["ar", "all"]["speedup"] == 1.0 and found["ar", "all"]["mean_acceptance_length"] == 1.0
    )
    assert all(r["identical_to_ar"] for r in found.values())


def test_one_differing_repeat_is_not_identical():
    runs = AR + TREE[:-1] + [run("tree", 1, 2, 2.0, tokens=[*range(12), 99])]
    found = records(runs)
    assert found["tree", "math"]["identical_to_ar"]
    assert (
        not found["tree", "code"]["identical_to_ar"] and not found["tree", "all"]["identical_to_ar"]
    )
    assert found["tree", "all"]["differing_prompts"] == 1
    assert "NO (1)" in tabulate_speeds(list(found.values())).to_text()


def test_text_of_one_token_has_no_rates():
    runs = [run("ar", 0, 0, 1e-6, tokens=[4], rounds=0, hist=(0,)), run("ar", 1, 0, 6.0)]
    found = records(runs)
    assert (
        found["ar", "math"]["speedup_median"] is None
        and found["ar", "math"]["mean_acceptance_length"] is None
    )
    assert found["ar", "all"]["tokens_per_second"] == pytest.approx(2.0, rel=1e-5)
    assert found["ar", "all"]["tokens_per_second_median"] == 2.0
    assert "-" in tabulate_speeds(list(found.values())).to_text()


def test_intervals_span_what_other_prompts_might_give():
    both = records(AR + TREE)["tree", "all"]
    # Each domain has one prompt, and keeps it.
    assert both["speedup_ci"] is None and both["mean_acceptance_length_ci"] is None
    found = {
        r["method"]: r
        for r in summarise(AR + TREE, [LabelledPrompt("math", "p"), LabelledPrompt("math", "q")])
        if r["domain"] == "math"
    }
    assert found["tree"]["mean_acceptance_length_ci"] == [2.0, 3.0] and found["tree"][
        "speedup_ci"
    ] == [2.0, 3.0]
    assert found["ar"]["speedup_ci"] == [1.0, 1.0]


def test_profile_and_table():
    profile = {
        ("tree", "math"): {"draft": 1.25, "tree": 2.5, "verify": 3.5, "absorb": 0.25, "rest": 4.5}
    }
    found = records(AR + TREE, profile)
    assert found["tree", "math"]["ms_verify"] == 3.5 and "ms_verify" not in found["tree", "code"]
    assert found["tree", "math"]["draft_share"] == pytest.approx(4 / 12)
    lines = tabulate_speeds(list(found.values())).to_text().splitlines()
    assert len(lines) == 7 and lines[0].split()[-6:] == [
        "draft",
        "tree",
        "verify",
        "absorb",
        "rest",
        "drafting",
    ]
    assert lines[2].split()[:2] == ["math", "tree"]
    assert lines[2].split()[-6:] == ["1.25", "2.50", "3.50", "0.25", "4.50", "33%"]


def test_the_table_has_what_a_report_adds():
    known = {"temperature": 1.0, "drafter": "t", "forwards": 8}
    rows = [
        record | known for record in summarise(AR + TREE, PROMPTS) if record["method"] == "tree"
    ]
    cost = {"steps": 1200, "rows": 9600, "tokens": 2_400_000, "minutes": 17.25}
    lines = (
        tabulate_speeds(rows, {"t": {"parameters": 1_250_000, "training": cost}})
        .to_text()
        .splitlines()
    )
    assert lines[0].startswith("T  domain") and lines[1].startswith("1  math")
    assert lines[0].endswith("parameters  training") and lines[1].endswith(
        "1.2M        1,200 steps, 2.4M tokens, 17 min"
    )
    assert "forwards" in lines[0] and "8" in lines[1].split()
    assert tabulate_speeds(
        [row | {"drafter": "other"} for row in rows], {"t": {}}
    ).to_text().splitlines()[1].split()[-2:] == ["-", "-"]


def test_many_methods_go_in_groups_with_the_first_in_each():

    assert group_methods(["ar"]) == [["ar"]]
    assert group_methods(["ar", *"abcde"], 2) == [["ar", "a", "b"], ["ar", "c", "d"], ["ar", "e"]]
