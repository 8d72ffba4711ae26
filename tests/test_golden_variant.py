"""Golden tests hold no size, layer, count or folder of the shipped set: they pass on another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden_variant import make_variant

TESTS = Path(__file__).parent
FILES = (
    "round/test_golden_rounds.py",
    "acceptance/test_verify.py",
    "drafters/test_golden_forward.py",
    "drafters/medusa/test_medusa.py",
    "drafters/eagle3/test_eagle.py",
    "drafters/griffin/test_golden.py",
)


@pytest.fixture(scope="module")
def variant(tmp_path_factory):
    return make_variant(tmp_path_factory.mktemp("golden") / "set")


def test_the_other_set_has_other_sizes(variant):
    config = json.loads((variant / "dflash" / "target" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (7, 3)
    assert not (variant / "tiny_llama").exists()
    assert len(json.loads((variant / "dflash" / "decode.json").read_text())) == 10


@pytest.mark.slow
def test_golden_tests_pass_on_it(variant):
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "golden", *FILES],
        cwd=TESTS,
        env=os.environ | {"JAXSPEC_GOLDEN": str(variant)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert "skipped" not in found.stdout
