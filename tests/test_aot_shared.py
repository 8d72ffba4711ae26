"""Programs of shared targets to compile ahead of time: shapes, and no GPU, plugin or weights."""

import re

import jax
import pytest
from jax.sharding import AbstractMesh

from jaxspec.bench import aot
from jaxspec.bench.aot_shared import shared_loop
from jaxspec.cli.main import main

# A layer of the target with 128 experts of 768 channels.
CALL = {"arch": "qwen3-30b-a3b", "layers": 1, "method": "ar", "capacity": 256}


def lower(experts, **options):
    """Lower rounds of a target that four devices share: the shapes that one has, and sums."""
    how, mesh = {"devices": 4, "experts": experts}, AbstractMesh((4,), ("model",))
    program = shared_loop(**how, **aot.check_call(**how, **CALL, **options))
    with program.around(mesh), jax.sharding.use_abstract_mesh(mesh):
        traced = program.function.trace(*program.args, **program.static)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    forward = next(line for line in text.splitlines() if "sdy.manual_computation" in line)
    own = re.findall(r"tensor<([^>]*)>", forward[forward.index("manual_axes") :])
    return set(own), text.count("stablehlo.all_reduce")


@pytest.mark.parametrize(
    ("experts", "gate_up", "down"),
    [
        ("channel", "128x2048x1x384xbf16", "128x192x2048xbf16"),
        ("expert", "32x2048x1536xbf16", "32x768x2048xbf16"),
    ],
)
def test_a_device_computes_its_own_experts(experts, gate_up, down):
    """Both ways exchange the same two sums of hidden states a layer."""
    own, sums = lower(experts)
    assert {gate_up, down} <= own and sums == 2


def test_scales_of_whole_experts_lie_with_them():
    own, _ = lower("expert", quantize="int8")
    assert {"32x2048x1536xi8", "32x1536xf32", "32x2048xf32"} <= own


def test_the_command_passes_on_how_experts_are_shared(monkeypatch, capsys):
    calls = []

    def compile_report(factory, options, gpu, **rest):
        calls.append((factory.rpartition(":")[2], options["devices"], options["experts"]))
        return {"gpu": gpu, "compiles": False, "error": "nothing was compiled"}

    monkeypatch.setattr(aot, "compile_report", compile_report)
    given = ["aot", "--arch", "qwen3-30b-a3b", "--tp", "4", "--experts", "expert"]
    assert main([*given, "--method", "ar"]) == 1
    assert main([*given, "--method", "ar", "--prefill"]) == 1
    assert calls == [("shared_loop", 4, "expert"), ("shared_prefill", 4, "expert")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--arch", "qwen3-8b", "--tp", "4"), "no experts for 4 devices"),
        (("--arch", "qwen3-30b-a3b"), "128 experts for 1 device:"),
        (("--arch", "qwen3-30b-a3b", "--tp", "4", "--draft"), "compiles rounds and prefills"),
    ],
)
def test_what_cannot_be_shared_is_told_before_anything_compiles(options, message, capsys):
    assert main(["aot", *options, "--experts", "expert"]) == 2
    assert message in capsys.readouterr().err
