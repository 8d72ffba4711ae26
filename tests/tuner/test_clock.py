"""In short floats no clock decides: not the text, nor the rows of any round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slow_cases import slow_except

HELPERS = Path(__file__).parents[1] / "helpers"


def decode(folder, *lies):
    """The tokens, rows and draft steps of 20 calls in a process of their own."""
    path = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    done = subprocess.run(
        [sys.executable, str(HELPERS / "clock_decode.py"), *lies],
        env=os.environ | {"JAXSPEC_CACHE": str(folder), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("liar", slow_except([1], [0, 1]))
def test_texts_and_rows_are_those_of_a_process_whose_clock_lies(tmp_path, liar):
    """The first process measures what rounds cost; the second one reads it, and learns nothing."""
    first, second = (decode(tmp_path, *["lies"] * (turn == liar)) for turn in range(2))
    assert len(list((tmp_path / "costs").iterdir())) == 1
    assert first == second
    rows = {count for _, rounds, _ in first for count in rounds}
    # There was something to choose, if the table is true.
    assert len(first) == 20 and (len(rows) > 1 or liar == 0)
