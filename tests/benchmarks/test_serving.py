"""Studies of the engine beside `decode` print tables, and refuse what they cannot measure."""

import pytest
from serve_toys import make
from short_models import load_short

from benchmarks.__main__ import main
from benchmarks.serving.adapting import Visit, render_adapting, split_visits
from benchmarks.serving.compare_decode import compare_decode, render_decode
from jaxspec.serve import ServeRequest

REQUESTS = [ServeRequest((5, 6, 7 + i), max_new_tokens=6, ignore_eos=True) for i in range(3)]


@pytest.mark.slow
def test_a_full_engine_is_compared_with_one_call(capsys):
    few = ["--drafter", "dflash", "--budget", "4", "--max-new-tokens", "4", "--repeats", "1"]
    assert main(["saturate", *few, "--batches", "1", "--visit-seconds", "0.01"]) == 0
    assert main(["saturate", *few, "--batches", "1", "--visit-seconds", "0"]) != 0
    assert "overhead %" in capsys.readouterr().out


@pytest.mark.thorough
def test_an_engine_is_compared_with_decode_and_with_plain_rounds():
    params, engine = load_short(), make(load_short(), rule="global", queue=3)
    records = compare_decode(params, engine, REQUESTS, (1, 2), repeats=1)
    sides = [(one["clients"], one["side"]) for one in records]
    alone = [(1, "engine"), (1, "decode"), (1, "engine, plain")]
    assert sides == [*alone, (2, "engine"), (2, "engine, plain")]
    assert all(one["same"] and one["tokens_per_second"] > 0 for one in records)
    table = render_decode(records)
    assert table.count("yes") == 5 and "engine over it" in table


def test_visits_during_updates_are_counted_apart():
    """From the end of the visit before, with what the engine did between both."""
    visits = [Visit(1.0, 9, False), Visit(2.0, 5, False), Visit(4.0, 6, True), Visit(4.5, 7, False)]
    found = split_visits(visits)
    assert found["resting"] == [5, 1.0] and found["updating"] == [13, 2.5]
    assert found["longest_gap"] == 2.0 and found["visits"] == 4
    record = {"seconds": 4.0, "tokens_per_slot_round": 2.0, "ms": {"between parts": {"p99": 30.0}}}
    learned = {"updates": 2, "refused": 1}
    plain = record | found | {"updating": [0, 0.0], "tokens_per_second": 10.4, "learned": {}}
    own = record | found | {"tokens_per_second": 5.2, "learned": learned}
    records = [plain | {"engine": "never"}, own | {"engine": "osd"}]
    lines = render_adapting([one | {"equal": True} for one in records]).splitlines()
    assert lines[-1].split() == [
        "osd",
        "5.2",
        "0.500",
        "0.500",
        "0.62",
        "2.00",
        "2",
        "1",
        "30.0",
        "2000",
        "yes",
    ]
