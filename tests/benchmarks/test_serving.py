"""Studies of the engine beside `decode` print tables, and refuse what they cannot measure."""

import pytest
from serve_toys import make
from short_models import load_short

from benchmarks.__main__ import main
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
