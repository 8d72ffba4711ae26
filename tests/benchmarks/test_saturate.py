"""The study of full engines prints a table and refuses what it cannot measure."""

import pytest

from benchmarks.__main__ import main


@pytest.mark.slow
def test_the_study(capsys):
    few = ["--drafter", "dflash", "--budget", "4", "--max-new-tokens", "4", "--repeats", "1"]
    assert main(["saturate", *few, "--batches", "1", "--visit-seconds", "0.01"]) == 0
    assert main(["saturate", *few, "--batches", "1", "--visit-seconds", "0"]) != 0
    assert "overhead %" in capsys.readouterr().out
