"""`jaxspec check`: nothing is lost, wrong kernels and wrong texts show, and goals are judged."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_models import shorten
from slow_cases import slow_except

from jaxspec.bench.architectures import (
    add_random_drafter,
    architecture,
    dspark_config,
    eagle_config,
    random_params,
)
from jaxspec.bench.check import causes, kernel_errors, plan_check
from jaxspec.bench.check.check_goals import is_correct, list_goals, list_shortfalls
from jaxspec.bench.check.check_report import render_check
from jaxspec.bench.check.kernel_errors import AttentionShape, check_kernels
from jaxspec.bench.check.kernel_profile import summarise_trace
from jaxspec.bench.check.layer_kernels import check_layer_kernels
from jaxspec.bench.check.lossless import (
    check_autoregressive,
    check_lossless,
    find_processor,
)
from jaxspec.bench.check.plan_check import CPU, GPU, check_device, choose_sizes
from jaxspec.bench.check.rounds import SETTINGS, measure_rounds
from jaxspec.bench.check.run_steps import Step, run_steps, take_over
from jaxspec.bench.check.verification import measure_verification, summarise_pieces
from jaxspec.bench.latency import cell
from jaxspec.bench.measure.methods import Method
from jaxspec.cli.main import main
from pallas_kernels import residual
from pallas_kernels.caution import CAUTIOUS


def fail():
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


def test_steps_are_saved_one_by_one_and_errors_end_nothing():
    saved, lines = [], []
    steps = [Step("one", lambda: 1), Step("two", fail), Step("long", lambda: 2, 9.0)]
    steps.append(Step("three", lambda: 3))
    report = run_steps(
        steps, 5.0, {"device": {}}, lines.append, lambda report: saved.append(copy.deepcopy(report))
    )
    assert [sorted(one["steps"]) for one in saved[:2]] == [["one"], ["one", "two"]]
    assert report["steps"]["one"]["result"] == 1 and report["steps"]["three"]["result"] == 3
    assert "RuntimeError at test_check.py" in report["steps"]["two"]["error"]
    assert report["steps"]["long"]["skipped"].startswith("needs 9 minutes, and ")
    assert len(lines) == 3 and json.dumps(report)


def test_no_step_begins_after_the_time():
    report = run_steps([Step("one", lambda: 1, 0.001)], 0.0, {})
    assert "skipped" in report["steps"]["one"]
    report = run_steps([Step("one", lambda: 1)], -1.0, {})
    assert report["steps"]["one"]["skipped"] == "no time is left"


def break_the_gpu():
    raise RuntimeError(
        "INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction"
    )


def test_what_a_broken_gpu_cannot_run_is_left_to_another_process():
    steps = [Step("one", lambda: 1), Step("two", break_the_gpu), Step("three", lambda: 3)]
    report = run_steps(steps, 5.0, {"device": "a", "sizes": {"widths": (1,)}, "mesh": None})
    assert report["fault"] == "two" and sorted(report["steps"]) == ["one", "two"]
    before = json.loads(json.dumps(report))
    again = {"device": "a", "sizes": {"widths": (1,)}, "mesh": None}
    found = run_steps(steps, 5.0, again | take_over(again, before))
    assert "fault" not in found and found["steps"]["three"]["result"] == 3
    assert "error" in found["steps"]["two"] and found["seconds"] >= before["seconds"]
    with pytest.raises(ValueError, match="differs in 'device': it says a, and this is b"):
        take_over(again | {"device": "b"}, before)


def test_the_command_goes_on_in_a_new_process(monkeypatch, tmp_path, capsys):
    calls, out = [], tmp_path / "check.json"
    steps = [Step("one", break_the_gpu), Step("two", lambda: 2)]
    monkeypatch.setattr(plan_check, "_list_steps", lambda *_: steps)
    monkeypatch.setattr("os.execv", lambda program, command: calls.append(command))
    main(["check", "--minutes", "3", "--json", str(out)])
    (command,) = calls
    assert "one broke this process' use of the GPU" in capsys.readouterr().err
    assert main(command[3:]) == 1  # the step that broke the GPU stays an error
    found = json.loads(out.read_text())["steps"]
    assert found["two"]["result"] == 2 and "CUDA_ERROR_ILLEGAL_INSTRUCTION" in found["one"]["error"]
    (tmp_path / "other.json").write_text("[]")
    assert main(["check", "--resume", str(tmp_path / "other.json")]) == 2
    assert "not a report of jaxspec check" in capsys.readouterr().err


def test_steps_can_be_chosen(monkeypatch, tmp_path, capsys):
    out, names = tmp_path / "check.json", ("ceilings", "one", "rounds: ar, batch 8", "two")
    steps = [Step(name, lambda name=name: name) for name in names]
    monkeypatch.setattr(plan_check, "_list_steps", lambda *_: steps)
    monkeypatch.setattr("jaxspec.bench.check.check_report.render_check", lambda report: "")
    assert main(["check", "--steps", "two; rounds: ar, batch 8", "--json", str(out)]) == 0
    assert list(json.loads(out.read_text())["steps"]) == ["ceilings", "two", "rounds: ar, batch 8"]
    assert main(["check", "--steps", "three"]) == 2
    assert "no step 'three' here: choose one of ceilings, one, rounds" in capsys.readouterr().err
    calls, steps[1] = [], Step("one", break_the_gpu)
    monkeypatch.setattr("os.execv", lambda program, command: calls.append(command))
    main(["check", "--steps", "one;two", "--json", str(out)])
    assert calls[0][-2:] == ["--steps", "one;two"]


@pytest.mark.thorough
def test_kernels_of_layers_are_compared(monkeypatch):
    found = check_layer_kernels(False)
    assert {name: one["cases"] for name, one in found.items()} == {
        "split_heads": 2,
        "add_normalize": 2,
        "choose_smallest": 1,
    }
    assert not [case for one in found.values() for case in one["failed"]]
    right = residual.find_kernel
    monkeypatch.setattr(residual, "find_kernel", lambda dtype: shift(right(dtype)))
    found = check_layer_kernels(False)
    assert len(found["add_normalize"]["failed"]) == 2 and not found["split_heads"]["failed"]


def shift(kernel):
    return lambda *given, **how: jax.tree.map(lambda x: x + 0.1, kernel(*given, **how))


@pytest.mark.thorough
def test_the_kernels_are_compared():
    (record,) = check_kernels(real=False).values()
    assert record["cases"] == 10 and not record["failed"] and not record["refused"]
    assert 0 < record["worst"]["float32"] < 1e-5


@pytest.mark.parametrize("fault", ["wrong", "not finite", "differs"])
def test_a_wrong_kernel_shows(monkeypatch, fault):
    compiled, calls = kernel_errors._compile, []

    def compile_badly(shape, name):
        good = compiled(shape, name)
        if name == kernel_errors.REFERENCE:
            return good

        def bad(*given):
            calls.append(name)
            out = np.array(good(*given))
            amount = {"wrong": 0.01, "not finite": np.nan, "differs": 1e-7 * len(calls)}[fault]
            out[0, 0, 0, 0] += amount
            return out

        return bad

    monkeypatch.setattr(kernel_errors, "_compile", compile_badly)
    shape = AttentionShape(4, 2, 4, 2, 64, "float32", 128)
    monkeypatch.setattr(kernel_errors, "list_cases", lambda real: [(shape, ((0, 70),))])
    (record,) = check_kernels(real=False).values()
    (failed,) = record["failed"]
    assert failed["rows"] == 4 and failed["lengths"] == (0, 70)


def test_rows_that_must_not_count_hold_other_values(monkeypatch):
    rows, shape = {}, AttentionShape(4, 2, 4, 2, 64, "float32", 128)

    def compile_none(shape, name):
        def call(*given):
            rows[name] = np.asarray(given[5][1, 0, 0, 70:])  # of a cache of 70 live rows
            return given[0]

        return call

    monkeypatch.setattr(kernel_errors, "_compile", compile_none)
    kernel_errors.measure_errors(shape, (70, 0), "interpret")
    assert np.isnan(rows["interpret"]).all() and not rows[kernel_errors.REFERENCE].any()


def test_kernels_that_cannot_run_say_why():
    found = check_kernels(real=True)  # there is no GPU
    assert "needs an NVIDIA GPU" in next(iter(found["triton"]["refused"]))
    assert found["triton"]["cases"] == 0


@pytest.mark.slow
def test_texts_are_compared():
    given = {"drafter": "jetspec", "builder": "best_first", "budget": 8}
    found = check_lossless(12, (Method("tree", given),))
    assert [one["differing"] for one in found.values()] == [0, 0] and len(found) == 2
    other = check_lossless(12, (Method("other seed", {"drafter": "ar", "stop": [0]}),))
    assert other["other seed, T=0"]["differing"] == 0
    wrong = check_lossless(12, (Method("hotter", {"drafter": "ar", "min_p": 0.9}),))
    assert wrong["hotter, T=1"]["differing"] > 0 and wrong["hotter, T=1"]["first"] is not None
    texts = wrong["hotter, T=1"]["texts"]
    assert len(texts) == wrong["hotter, T=1"]["differing"]
    assert all(one[0] != other[0] and len(one) <= 8 for one, other in texts)


@pytest.fixture(scope="module")
def tiny():
    spec = architecture("mini", block_size=4, drafter_layers=1)
    params = shorten(random_params(spec, jnp.float32))
    for config in (eagle_config(params.spec, 512), dspark_config(params.spec)):
        params = add_random_drafter(params, config)
    return params


@pytest.fixture
def wrong_texts():
    return {"steps": {"lossless": {"result": {"tree, T=0": {"differing": 1}}}}}


def test_texts_that_are_wrong_are_decoded_in_other_ways(monkeypatch, wrong_texts):
    good, bad = [[1, 2], [3]], [[1, 2], [4]]
    texts = {"on the processor": [good] * 4, "as usual": [good, good, bad, good]}
    failing = "without early launches"

    def decode(way, tokens):
        return {"error": "Unknown flag"} if way.name == failing else {"texts": given(way)}

    def given(way):
        return texts.get(way.name, [good] * 4)

    monkeypatch.setattr(causes, "_decode", decode)
    found = causes.find_causes(wrong_texts, 8)
    wrong = [name for name, one in found.items() if not one["right"]]
    assert wrong == ["as usual", failing]
    text = causes.render_causes(found)
    assert "texts as usual: wrong" in text and "wrong: Unknown flag" in text
    line = "without command buffers: right  XLA_FLAGS='--xla_gpu_enable_command_buffer='"
    assert line in text and "right  JAXSPEC_KERNELS=reference" in text
    assert "texts without kept programs: right  JAXSPEC_COMPILE_CACHE=0" in text
    # Each option of Hopper's programs can be given back to XLA.
    allowed = causes.render_causes(causes.try_ways(causes.ALLOWED, 8))
    assert all(f"right  {causes.ALLOW}={name}" in allowed for name in (*CAUTIOUS, "all"))
    # Nothing is compared with a process that failed.
    texts["on the processor"] = []
    assert not any(one["right"] for one in causes.find_causes(wrong_texts, 8).values())


def test_a_way_finds_no_programs_of_another(monkeypatch):
    given = []

    def run(command, env, **how):
        given.append((env["JAXSPEC_CACHE"], env.get("JAXSPEC_COMPILE_CACHE")))
        return subprocess.CompletedProcess(command, 0, "[[[1]]]\n", "")

    monkeypatch.delenv("JAXSPEC_COMPILE_CACHE", raising=False)
    monkeypatch.setattr(causes.subprocess, "run", run)
    found = causes.try_ways(causes.WAYS, 1)
    assert len({folder for folder, _ in given}) == len(found) == len(causes.WAYS) + 1
    # Two ways keep no programs, and the others do what users' processes do.
    assert sorted(switch or "" for _, switch in given)[-3:] == ["", "0", "0"]


def test_wrong_texts_of_the_processor_count_too(monkeypatch):
    monkeypatch.setattr(causes, "_decode", lambda way, tokens: {"texts": [[[1]]]})
    differs = {"differing": 1, "of": 1, "first": 0, "acceptance": 1.0, "texts": [[[5, 6], [7, 8]]]}
    report = make_report(processor={"ar on the processor, T=0": differs})
    assert causes.find_causes(report, 8)["as usual"]["right"]
    text = render_check(report)
    assert "ar on the processor, T=0: expected [5, 6], got [7, 8]" in text
    assert "texts that differ from autoregressive ones (float32): 1" in text


def test_right_texts_need_no_other_process(monkeypatch):
    monkeypatch.setattr(causes, "_decode", fail)
    right = {"result": {"tree, T=0": {"differing": 0}}}
    for step in ({}, {"lossless": right}, {"lossless": {"skipped": "no time is left"}}):
        assert causes.find_causes({"steps": step}, 8) == {}


@pytest.mark.slow
def test_processes_run_in_other_ways(monkeypatch):
    ways = (
        causes.WAYS[0],
        causes.Way("a", ("--xla_gpu_no_such=1",)),
        causes.Way("b", (), {"JAXSPEC_KERNELS": "blocks"}),
    )
    found = causes.try_ways(ways, 8)
    assert [one["right"] for one in found.values()] == [True, True, False, True]
    assert "Unknown flag" in found["a"]["error"]


@pytest.mark.slow
def test_autoregressive_texts_are_compared_with_another_device():
    found = check_autoregressive(8, jax.devices()[0])
    assert [one["differing"] for one in found.values()] == [0, 0]
    assert "ar on the processor, T=1" in found and find_processor() is None


@pytest.mark.parametrize("number", slow_except([0], [0, 6, 7]))
@pytest.mark.thorough
def test_rounds_are_timed_against_their_floor(tiny, number):
    setting = SETTINGS[number]
    found = measure_rounds(tiny, setting, context=20, rounds=2, rates=(1e10, 1e11))
    assert found["ms"] > 0 and found["dispatch_ms"] > 0
    assert (found["floor_ms"] is None) == (setting.method != "ar")
    assert json.dumps(found)


@pytest.mark.slow
def test_verification_is_timed_alone(tiny, monkeypatch):
    monkeypatch.setitem(cell.TIMES, "cpu", (2, 3, 4))
    found = measure_verification(tiny, (4, 6), 20)
    assert list(found) == ["4", "6"] and json.dumps(found)
    assert set(found["4"]) == {"ar_ms", "tree_ms", "verify_ms", "verify_over_ar"}
    assert all(value > 0 for one in found.values() for value in one.values())
    assert "verify/ar" in render_check(make_report(verification=found))


def test_pieces_are_compared_repeat_by_repeat():
    samples = {"ar": [1.0, 2.0, 4.0], "tree": [0.1, 0.3, 0.2], "verify": [1.1, 2.4, 4.0]}
    found = summarise_pieces(samples)
    assert (found["ar_ms"], found["tree_ms"], found["verify_ms"]) == (2.0, 0.2, 2.4)
    assert found["verify_over_ar"] == pytest.approx(1.1)


def test_equal_kernels_of_a_trace_are_added_up():
    named = [
        ("process_name", 1, None, "/device:GPU:0"),
        ("process_name", 2, None, "/host:CPU"),
        ("thread_name", 1, 7, "Stream #7(Compute)"),
        ("thread_name", 1, 8, "XLA Ops"),
        ("thread_name", 2, 9, "python"),
    ]
    events = [{"name": n, "pid": p, "tid": t, "args": {"name": to}} for n, p, t, to in named]
    for name, pid, tid, dur in [("a", 1, 7, 5), ("a", 1, 7, 7), ("b", 1, 7, 30), ("a", 1, 8, 5)]:
        events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, "dur": dur})
    events.append({"ph": "X", "name": "host", "pid": 2, "tid": 9, "dur": 99})
    found = summarise_trace({"traceEvents": events}, 2)
    assert found["kernels"] == 1.5 and found["busy_ms"] == 0.021
    assert [one["name"] for one in found["costliest"]] == ["b", "a"]
    assert found["costliest"][1] == {"name": "a", "us": 6.0, "count": 1.0}


@pytest.mark.slow
def test_sizes_fit_the_device():
    assert choose_sizes("cpu", 1e12, True).arch == "mini"
    assert choose_sizes("gpu", 70e9, True) == GPU
    small = choose_sizes("gpu", 14e9, False)  # qwen3-4b and its head take 9.0 GB
    assert small.arch == "qwen3-1.7b" and small.dtype == "float16"
    assert choose_sizes("gpu", 16e9, True).arch == "qwen3-4b"
    assert choose_sizes("gpu", 1e9, True).arch == "qwen3-0.6b"


def make_report(**steps):
    return {
        "device": {"kind": "NVIDIA H100 80GB HBM3", "platform": "gpu"},
        "versions": {"jax": "0"},
        "sizes": {"arch": "qwen3-8b", "dtype": "bfloat16"},
        "steps": {name.replace("_", " "): {"result": value} for name, value in steps.items()},
    }


def timed(ms, share=None):
    return {"ms": ms, "share_of_floor": share, "dispatch_ms": 0.1, "compile_seconds": {"rounds": 9}}


def test_goals_are_judged_on_the_device_that_they_are_for():
    report = make_report(lossless={"a": {"differing": 1, "of": 3, "first": 4, "acceptance": 2.0}})
    report["steps"] |= {
        "rounds: ar": {"result": timed(5.0, 91.0)},
        "rounds: best_first@64": {"result": timed(9.0)},
        "profile": {"error": "ValueError at x.py:1: no"},
    }
    met = {goal.quantity: met for goal, _, met in list_goals(report)}
    assert met["autoregressive step, % of its floor"] and met["round of 64 rows, ms"] is False
    assert met["prefill of the longest prompt, s"] is None
    lines = list_shortfalls(report)
    assert lines[0] == "profile: ValueError at x.py:1: no"
    assert "round of 64 rows, ms: 9, the goal is at most 7.5" in lines and len(lines) == 4
    text = render_check(report)
    assert "1 of 3" in text and "falls short" in text and "91" in text
    assert not is_correct(report)
    report["device"]["kind"] = "NVIDIA L4"
    assert {goal.quantity: met for goal, _, met in list_goals(report)}[
        "round of 64 rows, ms"
    ] is None


def test_every_goal_has_its_figure():
    """Figures that meet all goals, and then, one by one, figures that do not."""
    filtered = "rounds: best_first@64, T=0.6, top_k 20, top_p 0.95"
    steps = {
        "rounds: ar": timed(5.0, 85.0),
        "rounds: best_first@64": timed(6.75),
        filtered: timed(7.0),
        "rounds: stream": {"ms": 7.0},
        "verification": {
            "64": {"verify_over_ar": 1.1, "tree_ms": 0.9},
            "256": {"verify_over_ar": 1.45, "tree_ms": 0.15},
        },
        "prefill": {"512": {"seconds": 9.0}, "32704": {"seconds": 2.5}},
    }
    report = make_report()
    report["steps"] = {name: {"result": value} for name, value in steps.items()}
    assert not list_shortfalls(report)
    assert [met for *_, met in list_goals(report)[2:]] == [True] * 9
    for path, value, quantity in (
        (("rounds: ar", "share_of_floor"), 84.0, "autoregressive step, % of its floor"),
        (("rounds: best_first@64", "ms"), 7.6, "round of 64 rows, ms"),
        ((filtered, "ms"), 7.2, "round with top-k and top-p / greedy round"),
        (("verification", "64", "verify_over_ar"), 1.11, "verification of 64 rows"),
        (("verification", "256", "verify_over_ar"), 1.46, "verification of 256 rows"),
        (("verification", "256", "tree_ms"), 0.16, "tree building at 256 rows, ms"),
        (("prefill", "32704", "seconds"), 2.6, "prefill of the longest prompt, s"),
    ):
        worse = copy.deepcopy(report)
        *keys, last = path
        found = worse["steps"][keys[0]]["result"]
        for key in keys[1:]:
            found = found[key]
        found[last] = value
        assert any(line.startswith(quantity) for line in list_shortfalls(worse)), quantity
        assert is_correct(worse)
    report["device"] = {"kind": "cpu", "platform": "cpu"}
    assert len(list_goals(report)) == 2


def test_slow_is_not_wrong():
    report = make_report(**{"rounds: ar": timed(50.0, 1.0)})
    assert list_shortfalls(report) and is_correct(report)


def test_the_command_saves_what_it_prints(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plan_check, "_list_steps", lambda *_: [Step("one", lambda: 1)])
    out = tmp_path / "check.json"
    assert main(["check", "--minutes", "1", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["steps"]["one"]["result"] == 1
    assert "nothing falls short" in capsys.readouterr().out
    assert main(["check", "--minutes", "0"]) == 2


def test_the_command_fails_if_something_is_wrong(monkeypatch, capsys):
    wrong = {"a": {"differing": 1, "of": 3, "first": 4, "acceptance": 2.0}}
    for step in (Step("one", fail), Step("lossless", lambda: wrong)):
        monkeypatch.setattr(plan_check, "_list_steps", lambda *_, step=step: [step])
        assert main(["check", "--minutes", "1"]) == 1
        assert "falls short:" in capsys.readouterr().out


@pytest.mark.slow
def test_every_step_runs_in_small(monkeypatch):
    """The ones that a CPU does not reach in two minutes, and one of every kind before them."""
    given = {"drafter": "jetspec", "builder": "best_first", "budget": 8}
    lossless = functools.partial(check_lossless, methods=(Method("tree", given),))
    monkeypatch.setattr(plan_check, "check_lossless", lossless)
    monkeypatch.setattr(plan_check, "SETTINGS", SETTINGS[:2])
    monkeypatch.setitem(cell.TIMES, "cpu", (2, 3, 4))
    monkeypatch.setitem(plan_check.CEILING_SIZES, "cpu", (1, 64))
    sizes = dataclasses.replace(CPU, context=20, rounds=2, tokens=6, prefills=((20,), (90, 5)))
    report = check_device(30.0, sizes)
    assert not [name for name, step in report["steps"].items() if "result" not in step], report
    assert is_correct(report) and not list_shortfalls(report)
    assert list(report["steps"]["prefill"]["result"]) == ["20", "90, 5"]
    text = render_check(report)
    assert "90, 5" in text and "verify/ar" in text and "nothing falls short" in text
