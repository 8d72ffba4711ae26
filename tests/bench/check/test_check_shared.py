"""`jaxspec check --tp`: texts and rounds of a target that two virtual devices share."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_toys import make_params
from virtual_devices import run_on_devices

from jaxspec.bench.check.check_goals import list_goals
from jaxspec.bench.check.check_report import render_check
from jaxspec.bench.check.kernel_profile import summarise_trace
from jaxspec.bench.check.shared_target import RandomWeights, add_heads, check_devices, describe_own
from jaxspec.cli.main import main
from jaxspec.targets.transformer import Transformer


def check(folder, **request):
    """The report of `jaxspec check --tp 2` in small, what it prints, and devices of what ran."""
    path = folder / "check.json"
    printed = run_on_devices(2, "sharded_check.py", {"devices": 2, "json": str(path)} | request)
    *text, counts = printed.splitlines()
    return json.loads(path.read_text()), "\n".join(text), json.loads(counts)


@pytest.mark.slow
def test_texts_of_a_shared_target_are_compared(tmp_path):
    report, printed, counts = check(tmp_path, steps=["lossless"], temperatures=[1.0])
    assert counts["decode"] == {"1": 2, "2": 4}  # of two prompts
    assert counts["own"] == [16, 1, 24, 4, 1]  # half of [16, 48], of 8 heads and of 2 kv heads
    found = report["steps"]["lossless"]["result"]
    assert {name: (one["differing"], one["of"]) for name, one in found.items()} == {
        "ar on one device, T=1": (0, 2),
        "dflash, T=1": (0, 2),
    }
    assert report["mesh"] == {"model": 2, "steps": ["lossless", "rounds", "profile", "prefill"]}
    assert "mesh model=2: 2 devices share the target in: lossless\n" in printed
    assert "mini on 2 devices, float32" in printed


@pytest.mark.slow
def test_every_step_runs_with_a_shared_target(tmp_path):
    report, printed, counts = check(tmp_path, mini=True)
    shared = {name: counts[name] for name in ("rounds", "stream", "profile", "prefills")}
    assert shared == {
        "rounds": {"2": 2},
        "stream": {"2": 1},
        "profile": {"2": 1},
        "prefills": {"2": 1},
    }
    assert counts["verification"] == {"1": 1}
    steps = report["steps"]
    assert not [name for name, step in steps.items() if "result" not in step], steps
    found = steps["lossless"]["result"]
    assert len(found) == 4 and not any(one["differing"] for one in found.values())
    rounds = steps["rounds: best_first@64"]["result"]
    # Two devices share what one device's rates say nothing about.
    assert rounds["ms"] > 0 and rounds["floor_ms"] is None
    assert (
        "on one device: ceilings, layer kernels, kernels, causes, verification, agreement"
        in printed
    )


def test_heads_of_zeros_change_nothing():
    """`mini` has five heads, which two devices cannot share."""
    params = make_params("qwen3", num_heads=5, num_kv_heads=1)
    wide, tokens = add_heads(params, 4), jnp.array([[4, 9, 2, 14, 7]])
    assert wide.spec.target.num_heads == 8 and params.spec.target.num_heads == 5
    positions = jnp.arange(5)[None]
    outs = [
        Transformer(one.spec.target).apply(one.target, tokens, positions).hidden
        for one in (params, wide)
    ]
    np.testing.assert_allclose(*outs, atol=1e-5)
    assert add_heads(params, 5).spec == params.spec


def test_weights_are_drawn_once(monkeypatch):
    """Without a mesh, the pieces of rounds use the weights that rounds use."""
    monkeypatch.setattr(RandomWeights, "_draw", lambda self: object())
    weights = RandomWeights("mini", "float32", None)
    held = weights.shared()
    assert weights.alone() is held is weights.shared()
    weights.drop()
    assert weights.shared() is not held


def test_one_device_holds_all_of_a_target_that_nothing_shares():
    params = make_params("qwen3")
    own = describe_own(params)
    assert own.spec == params.spec
    shapes = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert shapes(own.target) == shapes(params.target)


def test_devices_that_cannot_share_the_targets_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 16)
    check_devices(6, "mini")
    check_devices(8, "qwen3-8b")
    with pytest.raises(ValueError, match="mini and qwen3-8b, so give one of 1, 2, 4, 8, 16"):
        check_devices(6, "qwen3-8b")
    with pytest.raises(ValueError, match="--tp is 7: a check shares mini and mini"):
        check_devices(7, "mini")


def test_more_devices_than_there_are_is_an_error(capsys):
    assert main(["check", "--tp", "99"]) == 2
    error = capsys.readouterr().err
    assert "--tp is 99: give 1 to" in error and error.count("\n") == 1
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=99" in error


def test_goals_of_one_gpu_have_no_verdict_for_a_shared_target():
    report = {
        "device": {"kind": "NVIDIA H100 80GB HBM3", "platform": "gpu"},
        "versions": {"jax": "0"},
        "sizes": {"arch": "qwen3-8b", "dtype": "bfloat16"},
        "mesh": {"model": 2, "steps": ["rounds"]},
        "steps": {
            "lossless": {"skipped": "no time is left"},
            "rounds: ar": {"result": {"ms": 5.0, "share_of_floor": 20.0}},
            "top-k": {},
        },
    }
    assert not [met for *_, met in list_goals(report) if met is not None]
    text = render_check(report)
    assert "share the target in: rounds\non one device: top-k" in text and "virtual" not in text


def test_kernels_of_several_devices_are_averaged():
    named = [("process_name", 1, "/device:GPU:0"), ("process_name", 2, "/device:GPU:1")]
    events = [{"name": n, "pid": p, "args": {"name": to}} for n, p, to in named]
    for pid in (1, 2):
        stream = {"name": "thread_name", "pid": pid, "tid": 7, "args": {"name": "Stream #7"}}
        events += [stream, {"ph": "X", "name": "sum", "pid": pid, "tid": 7, "dur": 10 * pid}]
    found = summarise_trace({"traceEvents": events}, 1, devices=2)
    assert found["kernels"] == 1 and found["costliest"][0]["us"] == 15.0
