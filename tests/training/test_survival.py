"""A run that is killed with SIGKILL at random moments, again and again, ends with the weights of
one that was not.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import training_toys as toys

from training import tokenizer
from training.run.checkpoints import Checkpoints

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60


def command(folder: Path, run: Path) -> list[str]:
    """A target of a few thousand parameters, with a checkpoint after every step: most of the time
    is spent in saving.
    """
    data = str(folder / "corpus.jsonl.gz")
    options = {
        "data": data,
        "heldout": data,
        "tokenizer": folder / "words",
        "length": 16,
        "max_positions": 128,
    }
    options |= {
        "loop.run": run,
        "loop.steps": STEPS,
        "loop.save_every": 1,
        "loop.parts": 2,
        "loop.eval_every": 1000,
    }
    words = [
        word
        for name, value in (options | toys.SIZES).items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    rows = [f"--rows.{name}={count}" for name, count in (("math", 2), ("code", 1), ("prose", 1))]
    return [sys.executable, "-m", "training.train_target", *words, *rows, "--optimizer.warmup", "2"]


def launch(folder: Path, run: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command(folder, run),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]


def newest(run: Path) -> int:
    return max(
        (int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()),
        default=0,
    )


def kill_after_progress(process: subprocess.Popen, run: Path, pause: float) -> None:
    """SIGKILL `pause` seconds after the process has written its first checkpoint, or earlier if it
    ends.
    """
    before, deadline = newest(run), time.monotonic() + 120
    while newest(run) == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path):
    toys.write_corpus(tmp_path / "corpus.jsonl.gz")
    tokenizer.main(toys.tokenizer_options(tmp_path / "corpus.jsonl.gz", tmp_path / "words"))
    finish(launch(tmp_path, tmp_path / "whole"))
    run, moments, reached = tmp_path / "killed", random.Random(time.time_ns()), []
    for _ in range(6):
        pause = moments.uniform(0, 1.0)
        kill_after_progress(launch(tmp_path, run), run, pause)
        reached.append((round(pause, 3), newest(run)))
    assert 0 < reached[0][1] < STEPS, f"killed too late to test anything: {reached}"
    finish(launch(tmp_path, run))
    (recipe, whole), (other, killed) = (
        Checkpoints.read(tmp_path / name / "checkpoints") for name in ("whole", "killed")
    )
    assert recipe == other
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b, err_msg=str(reached)), whole, killed
    )
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and set(steps) == set(range(1, STEPS + 1))
    print("killed (seconds after a checkpoint, steps done):", reached)
