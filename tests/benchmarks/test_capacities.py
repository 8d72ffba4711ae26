"""The study of capacities times steps at each, and refuses those that hold no context."""

import json

import pytest

from benchmarks.__main__ import main
from jaxspec.bench import architectures
from jaxspec.bench.latency import latency_options
from jaxspec.core.config import TargetConfig

TOY = TargetConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=16,
    vocab_size=64,
    tie_embeddings=True,
    max_positions=256,
)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(architectures.ARCHITECTURES, "toy", TOY)
    monkeypatch.setitem(latency_options.HEADS, "toy", {"block_size": 4, "drafter_layers": 1})


@pytest.mark.thorough
def test_steps_are_timed_at_every_capacity(capsys, tmp_path):
    out = tmp_path / "out.json"
    shape = ["--arch", "toy", "--batch", "2", "--context", "20", "--repeats", "1"]
    assert main(["capacities", *shape, "--capacities", "64,256", "--json", str(out)]) == 0
    records = json.loads(out.read_text())
    assert "x products" in capsys.readouterr().out
    assert [one["capacity"] for one in records] == [64, 256]
    for one in records:
        assert (one["kernel"], one["context"], one["batch"]) == ("blocks", 20, 2)
        assert min(one[f"{name}_ms"] for name in ("products", "kernel", "reference")) > 0


def test_a_capacity_without_room_is_refused(capsys):
    assert main(["capacities", "--arch", "toy", "--context", "9", "--capacities", "9,64"]) == 2
    assert "capacity 9: give more than the context, 9" in capsys.readouterr().err
