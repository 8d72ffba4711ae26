"""The bench of the engine drives it as loads say, and its commands print tables."""

import json

import pytest
from serve_toys import make
from short_models import load_short

from jaxspec.bench.endpoint.load import Load
from jaxspec.bench.endpoint.summary import summarise
from jaxspec.bench.serve.compare_rules import compare_repeats, compare_rules, render_rules
from jaxspec.bench.serve.drive import drive
from jaxspec.cli.bench import serve as bench_serve
from jaxspec.cli.main import main, parse
from jaxspec.cli.shared import options
from jaxspec.serve import ServeRequest
from jaxspec.serve.on_device.share_rows import RULES


@pytest.fixture(scope="module")
def engine():
    return make(load_short(), rule="global", queue=3)


REQUESTS = [ServeRequest((5, 6, 7 + i), max_new_tokens=6, ignore_eos=True) for i in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("load", [Load(5, clients=2), Load(5, rate=200.0, seed=1)])
def test_every_request_is_answered_and_timed(engine, load):
    measured = drive(engine, REQUESTS, load)
    assert len(measured.asked) == 5 and engine.idle
    for one in measured.asked:
        if one.error is None:
            assert one.tokens == 6 and 0 <= one.first <= one.total <= measured.seconds


@pytest.mark.slow
def test_a_full_queue_counts_as_an_error(engine):
    measured = drive(engine, REQUESTS, Load(8, clients=8))
    assert [one.error for one in measured.asked].count("status 429") == 5
    assert sum(one.error is None for one in measured.asked) == 3


@pytest.mark.slow
def test_a_request_that_the_engine_gives_up_counts_as_an_error(engine):
    late = [ServeRequest((5, 6), max_new_tokens=6, deadline=1e-9)]
    summary = summarise(drive(engine, late, Load(2)))
    assert summary["errors"] == {"deadline": 2} and summary["completed"] == 0


@pytest.mark.thorough
def test_rules_take_turns(engine):
    lines = []
    records = compare_rules(
        {"a": engine, "b": engine}, REQUESTS, [Load(2)], repeats=2, progress=lines.append
    )
    # Every second repeat is in reversed order.
    assert [(r["rule"], r["repeat"]) for r in records] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert len(lines) == 4
    assert all(r["tokens"] == 12 and r["tokens_per_slot_round"] >= 1 for r in records)
    assert "TTFT p50" in render_rules(records, [Load(2)])


def test_rules_are_compared_repeat_by_repeat():
    """A machine that is twice as slow in one repeat changes no ratio."""
    ratio, (low, high) = compare_repeats([90.0, 45.0, 90.0], [100.0, 50.0, 100.0])
    assert ratio == pytest.approx(0.9) and low == pytest.approx(0.9) == pytest.approx(high)
    assert compare_repeats([2.0, 8.0], [1.0, 1.0])[0] == pytest.approx(4.0)
    assert compare_repeats([90.0], [100.0]) == (pytest.approx(0.9), None)


def test_the_rules_of_the_command_are_those_of_the_engine():
    assert options.RULES == RULES


@pytest.mark.parametrize(
    "given",
    [
        ("--rules", "best"),
        ("--clients", "0"),
        ("--requests", "0"),
        ("--rate", "inf"),
        ("--first-goal", "nan"),
    ],
)
def test_bad_loads_are_refused_before_the_model_is_loaded(capsys, given):
    with pytest.raises(SystemExit):
        main(["bench", "serve", *given])
    assert f"argument {given[0]}: '{given[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(("least", "lengths"), [(None, (4, 8)), (8, (8, 8)), (1, (1, 8))])
def test_lengths_of_texts_are_drawn(engine, least, lengths):
    given = ["bench", "serve", "--max-new-tokens", "8"]
    given += [] if least is None else ["--min-new-tokens", str(least)]
    arguments = parse(given)
    found = bench_serve.make_requests(arguments, engine._device.params)
    assert bench_serve.make_requests(arguments, engine._device.params) == found
    assert len(found) == 40 and len({request.tokens for request in found}) == 3
    drawn = {request.max_new_tokens for request in found}
    assert drawn <= set(range(lengths[0], lengths[1] + 1))
    assert len(drawn) == 1 if lengths == (8, 8) else len(drawn) > 2


def test_the_shortest_text_is_not_longer_than_the_longest(engine):
    arguments = parse(["bench", "serve", "--min-new-tokens", "65"])
    with pytest.raises(ValueError, match="min-new-tokens is 65: give an integer from 1 to 64"):
        bench_serve.make_requests(arguments, engine._device.params)


@pytest.mark.slow
def test_the_command(tmp_path):
    few = ["--drafter", "dflash", "--budget", "4", "--max-new-tokens", "4", "--repeats", "1"]
    file = tmp_path / "serve.json"
    loads = ["--slots", "2", "--rules", "global,ar", "--clients", "2", "--requests", "2"]
    assert main(["bench", "serve", *few, *loads, "--json", str(file)]) == 0
    records = json.loads(file.read_text())["records"]
    assert {r["rule"] for r in records} == {"global", "ar"}
