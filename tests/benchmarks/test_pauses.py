"""Replays of the controller's pauses, against loops in Python."""

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.policies.compare_pauses import (
    _order_texts,
    compare_rules,
    parse_rules,
    read_records,
    render_pauses,
    report_pauses,
    show_rule,
    summarise_rules,
)
from benchmarks.policies.replay_pauses import RecordedText, draft_always, find_reach, replay
from jaxspec.policies.bastion.pauses import (
    RULE,
    count_pause,
    drafting_pays,
    init_pauses,
    record_gain,
    resume_pauses,
)

LONGEST = 4
RATES = {"easy": 0.8, "hard": 0.2, "both": 0.5}
OTHER = RULE._replace(**{RULE._fields[0]: RULE[0] / 4})


def test_what_drafts_reach_from_every_place_follows_from_rounds():
    # Four tokens: nothing ended the draft. Then one of two drafts was accepted, then none.
    assert find_reach([4, 2, 1], LONGEST).tolist() == [4, 4, 4, 3, 2, 1, 1]
    # At the end of a text, no more tokens follow.
    assert find_reach([4, 4], LONGEST).tolist() == [4, 4, 4, 4, 4, 3, 2, 1]


def make_record():
    random = np.random.default_rng(1)
    decodes = [
        {
            "domain": domain,
            "rounds": np.minimum(random.geometric(1 - rate, 30), LONGEST).tolist(),
        }
        for domain, rate in RATES.items()
        for _ in range(3)
    ]
    return {"method": "jetspec-chain@4", "longest": LONGEST, "decodes": decodes}


def make_texts():
    return [
        RecordedText(one["domain"], find_reach(one["rounds"], LONGEST))
        for one in make_record()["decodes"]
    ]


def walk(texts, cost, rule, begins):
    """The same replay, one text and round at a time."""
    state, times = init_pauses(LONGEST, rule), []
    for text, new in zip(texts, begins, strict=True):
        state, place, time = init_pauses(LONGEST, rule) if new else state, 0, 0.0
        state = resume_pauses(state, rule)
        while place < len(text.reach):
            if drafting_pays(state, rule):
                taken, spent = int(text.reach[place]), cost
                state = record_gain(state, np.float32(taken - spent), rule)
            else:
                taken, spent, state = 1, 1.0, count_pause(state, rule)
            place, time = place + taken, time + spent
        times.append(time)
    return times


@pytest.mark.parametrize("beginnings", [range(9), [0], [0, 4, 5]])
@pytest.mark.thorough
def test_a_replay_takes_the_time_of_a_walk(beginnings):
    texts, order = make_texts(), np.array([4, 2, 0, 8, 6, 7, 1, 3, 5])
    # No sum of gains is near 0 at these costs, where rounding would decide.
    orders, rules, costs = np.stack([order, np.arange(9)]), [RULE, OTHER], [1.4, 1.8131]
    begins = np.isin(np.arange(9), beginnings)
    found = replay(texts, orders, costs, LONGEST, rules, begins)
    for number, rule in enumerate(rules):
        shuffled = np.zeros(9)
        shuffled[order] = walk([texts[i] for i in order], costs[1], rule, begins)
        whole = (shuffled + walk(texts, costs[1], rule, begins)) / 2
        np.testing.assert_allclose(found[number, 1], whole, rtol=1e-5)
    assert (found[0] != found[1]).any()


def test_a_process_begins_with_every_text_or_domain_or_once():
    member = np.array([[True, False, True, False], [False, True, False, True]])
    kinds = _order_texts(member, seed=0)
    assert kinds["first"][1].tolist() == [True] * 4
    orders, begins = kinds["domain"]
    assert orders.tolist() == [[0, 2, 1, 3]] and begins.tolist() == [True, False, True, False]
    orders, begins = kinds["mixed"]
    assert len({tuple(order) for order in orders.tolist()}) > 1
    assert (np.sort(orders) == np.arange(4)).all() and begins.tolist() == [True] + [False] * 3


def test_drafting_always_takes_every_round_its_cost():
    rounds = [len(one["rounds"]) for one in make_record()["decodes"]]
    np.testing.assert_allclose(draft_always(make_texts(), [1.5])[0], 1.5 * np.array(rounds))


def test_the_loss_is_against_the_better_of_both():
    records = compare_rules(make_texts(), [1.4], LONGEST, [RULE])
    assert [(one["kind"], one["rule"]) for one in records] == [
        (kind, rule)
        for kind in ("domain", "first", "mixed")
        for rule in ("always", show_rule(RULE))
    ]
    always, one = records[4:]
    assert set(one["speeds"]) == set(RATES)
    assert always["speeds"]["hard"] < 1 < always["speeds"]["easy"]
    assert always["losses"]["easy"] == 0 < always["losses"]["hard"]
    better = {name: max(1.0, speed) for name, speed in always["speeds"].items()}
    losses = {name: 1 - one["speeds"][name] / better[name] for name in better}
    assert one["losses"] == pytest.approx(losses)


def test_the_summary_pools_costs_kinds_and_domains():
    results = [
        {"rule": "a", "speeds": {"math": 1.2, "code": 0.9}, "losses": {"math": 0.1, "code": 0.3}},
        {"rule": "b", "speeds": {"math": 1.0, "code": 0.98}, "losses": {"math": 0.0, "code": 0.1}},
        {"rule": "a", "speeds": {"math": 1.0, "code": 1.1}, "losses": {"math": 0.2, "code": 0.2}},
    ]
    first, second = summarise_rules(results)
    assert list(first.values()) == ["b", *map(pytest.approx, (0.99, 0.98, 0, 0.05, 0.1))]
    assert list(second.values()) == ["a", *map(pytest.approx, (1.05, 0.9, 0.25, 0.2, 0.3))]


def test_recorded_rounds_are_replayed_without_a_model(tmp_path, capsys):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        path.write_text(json.dumps(make_record()))
    out, names = tmp_path / "out.json", ",".join(map(str, paths))
    arguments = ["--recorded", names, "--rules", show_rule(OTHER), "--costs", "1.4"]
    assert main(["pauses", *arguments, "--json", str(out)]) == 0
    printed, report = capsys.readouterr().out, json.loads(out.read_text())
    assert "easy 6, hard 6, both 6" in printed and show_rule(OTHER) in printed
    assert report["domains"] == dict.fromkeys(RATES, 6)
    assert {one["cost"] for one in report["results"]} == {1.4}
    again = report_pauses(read_records([out]), rules=[RULE, OTHER], costs=[1.4])
    assert render_pauses(again) == printed.rstrip("\n")


def test_a_rule_is_read_as_it_is_written():
    assert parse_rules(f"{show_rule(OTHER)},{show_rule(RULE)}") == [
        pytest.approx(OTHER, rel=1e-3),
        pytest.approx(RULE, rel=1e-3),
    ]
    for text in ("1", "a/b/c", show_rule(RULE) + "/1"):
        with pytest.raises(ValueError, match="are no rules: give"):
            parse_rules(text)


def test_files_that_cannot_be_replayed_are_refused(tmp_path, capsys):
    shortened, other = make_record(), make_record() | {"method": "dflash-chain@4"}
    shortened["decodes"] = [{"domain": "easy"}]
    paths = []
    for number, record in enumerate((make_record(), shortened, other)):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(record))
    with pytest.raises(ValueError, match="1.json holds no rounds"):
        read_records(paths[:2])
    with pytest.raises(ValueError, match="of dflash-chain@4: give files of one method"):
        read_records(paths[::2])
    assert main(["pauses"]) != 0
    assert "give either --method" in capsys.readouterr().err
