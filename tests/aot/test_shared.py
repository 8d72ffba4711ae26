"""Programs of shared targets to compile ahead of time: shapes, and no GPU, plugin or weights."""

import json
import re
import subprocess

import pytest
from jax.sharding import AbstractMesh

from jaxspec.bench.aot import report as aot
from jaxspec.bench.aot import virtual as aot_virtual
from jaxspec.bench.aot.shared import shared_loop
from jaxspec.bench.aot.table import render_partitioned
from jaxspec.cli.main import main
from pallas_kernels.aot.lower import lower_on

# A layer of the target with 128 experts of 768 channels.
CALL = {"arch": "qwen3-30b-a3b", "layers": 1, "drafter": "ar", "capacity": 256}


def lower(experts, **options):
    """Lower rounds of a target that four devices share: the shapes that one has, and sums."""
    how = {"devices": 4, "experts": experts}
    program = shared_loop(**how, **aot.check_call(**how, **CALL, **options))
    text = lower_on(program, AbstractMesh((4,), ("model",)), "cuda").as_text()
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
    given = ["aot", "qwen3-30b-a3b", "--tp", "4", "--experts", "expert"]
    assert main([*given, "--drafter", "ar"]) == 1
    assert main([*given, "--drafter", "ar", "--prefill"]) == 1
    assert calls == [("shared_loop", 4, "expert"), ("shared_prefill", 4, "expert")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("qwen3-8b", "--tp", "4"), "no experts for 4 devices"),
        (("qwen3-30b-a3b",), "128 experts for 1 device:"),
        (("qwen3-30b-a3b", "--tp", "4", "--draft"), "compiles rounds and prefills"),
    ],
)
def test_what_cannot_be_shared_is_told_before_anything_compiles(options, message, capsys):
    assert main(["aot", *options, "--experts", "expert"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "cpu"), "--gpu cpu shows what devices exchange: give --tp 2 or more"),
        (("--gpu", "cpu,h100", "--tp", "2"), "give cpu alone, or GPUs"),
    ],
)
def test_virtual_devices_share_something_and_are_no_gpus(options, message, capsys):
    assert main(["aot", "qwen3-30b-a3b", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_virtual_devices_show_the_partitioned_program(tmp_path, capsys):
    """The target has one layer of 5 heads, and five devices; `mini` is the smallest."""
    path = tmp_path / "aot.json"
    given = ["mini", "--drafter", "ar", "--layers", "1", "--context", "256"]
    assert main(["aot", "--gpu", "cpu", "--tp", "5", *given, "--json", str(path)]) == 0
    (report,) = json.loads(path.read_text())
    assert report["devices"] == 5 and report["memory"]["aliased"] >= report["cache_bytes"] > 0
    sums = [one for one in report["collectives"] if one["shape"].endswith("[1,1,320]")]
    assert [one["kind"] for one in sums] == ["all-reduce"] * 2
    printed = capsys.readouterr().out
    assert "2 x f32[1,1,320]" in printed and "arguments of each, MiB" in printed


@pytest.mark.slow
@pytest.mark.parametrize("experts", ["channel", "expert"])
def test_devices_exchange_the_same_however_they_share_experts(experts, tmp_path):
    path = tmp_path / "aot.json"
    given = ["qwen3-30b-a3b", "--layers", "2", "--context", "256", "--json", str(path)]
    assert main(["aot", "--gpu", "cpu", "--tp", "4", "--experts", experts, *given]) == 0
    for report, rows in zip(json.loads(path.read_text()), (1, 64), strict=True):
        sums = [one for one in report["collectives"] if one["shape"] == f"f32[1,{rows},2048]"]
        assert len(sums) == 4 and all(one["kind"] == "all-reduce" for one in sums)
        rest = [one for one in report["collectives"] if one not in sums]
        assert max(one["bytes"] for one in rest) < 2**20


def test_what_virtual_devices_cannot_compile_is_told(monkeypatch):
    def fail(command, **rest):
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: no memory\n")

    monkeypatch.setattr(aot_virtual.subprocess, "run", fail)
    report = aot_virtual.compile_virtual(arch="mini", layers=1, drafter="ar", devices=5)
    assert not report["compiles"] and report["error"] == "ValueError: no memory"
    assert render_partitioned([report]) == "ar does not compile: ValueError: no memory"
