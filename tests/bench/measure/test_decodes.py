from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.measure.decodes import (
    Run,
    estimate_drift,
    order_turns,
    remove_drift,
    time_decodes,
)
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.io.text.prompt_files import LabelledPrompt

PROMPTS = [LabelledPrompt("a", [1]), LabelledPrompt("b", [2])]


def output(tokens=(5, 6, 7), rounds=2, policy=None):
    stats = SimpleNamespace(
        rounds=rounds, drafted=4, accept_hist=(0, 2), prefill_seconds=0.5, decode_seconds=0.25
    )
    return SimpleNamespace(
        tokens=list(tokens),
        stats=stats,
        policy=policy,
        per_round=SimpleNamespace(tokens=np.array([2])),
    )


def test_methods_take_turns(monkeypatch):
    calls = []

    def decode(params, prompt, *, tuner, **options):  # one tuner for all methods
        calls.append((prompt, options))
        return output()

    monkeypatch.setattr(jaxspec, "decode", decode)
    methods = parse_methods("x-chain,x-expand+entropy", budget=4)
    runs, compile_seconds = time_decodes(
        None, PROMPTS, methods, repeats=2, options={"seed": 3, "budget": 8}
    )
    order = [
        [run.method for run in runs if (run.prompt, run.repeat) == key]
        for key in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert order == [
        ["ar", "x-chain", "x-expand+entropy"],
        ["x-expand+entropy", "x-chain", "ar"],
        ["x-chain", "x-expand+entropy", "ar"],
        ["ar", "x-expand+entropy", "x-chain"],
    ]
    assert [prompt for prompt, _ in calls] == [[1]] * 6 + [[2]] * 6
    assert calls[0][1] == {"seed": 3, "budget": 8, "drafter": "ar"}
    assert calls[1][1] == {
        "seed": 3,
        "drafter": "x",
        "budget": 4,
        "speculation": jaxspec.Speculation(builder="chain"),
    }
    assert str(calls[2][1]["speculation"].builder) == "expand+entropy"
    assert compile_seconds == {"ar": 0, "x-chain": 0, "x-expand+entropy": 0}
    assert runs[0].tokens == (5, 6, 7) and (runs[0].prefill_seconds, runs[0].decode_seconds) == (
        0.5,
        0.25,
    )


def test_turns_go_there_and_back():
    assert ["".join(order_turns("ab", 0, repeat)) for repeat in range(4)] == [
        "ab",
        "ba",
        "ba",
        "ab",
    ]
    assert ["".join(order_turns("abc", 1, repeat)) for repeat in range(4)] == [
        "bca",
        "acb",
        "cab",
        "bac",
    ]


def test_what_slows_a_whole_repeat_is_divided_out():
    speed, slow = (
        {"ar": 4.0, "x": 1.0, "y": 2.0},
        {(0, 0): 1.0, (0, 1): 3.0, (0, 2): 0.5, (1, 0): 7.0},
    )
    runs = [
        Run(name, *key, (1,), 1, 0, (0, 1), 0.5 * factor, seconds * factor)
        for key, factor in slow.items()
        for name, seconds in speed.items()
    ]
    drift = estimate_drift(runs)
    assert drift == pytest.approx({(0, 0): 1, (0, 1): 3, (0, 2): 0.5, (1, 0): 1})
    for run in (remove_drift(run, drift) for run in runs):
        usual = 7.0 if run.prompt else 1.0
        assert (run.prefill_seconds, run.decode_seconds) == pytest.approx(
            (0.5 * usual, speed[run.method] * usual)
        )


def test_a_policy_goes_on_with_what_it_learned(monkeypatch):
    seen = []

    def decode(params, prompt, **options):
        policy = None if options["drafter"] == "ar" else options["speculation"].policy
        seen.append(policy and policy.state)
        return output(policy=policy and policy.replace(state=policy.state + 1))

    monkeypatch.setattr(jaxspec, "decode", decode)
    policy = jaxspec.policies.make_static(1, 1, (1,)).replace(state=7)
    methods = [Method("ar", {"drafter": "ar"}), Method("x", {"drafter": "x", "policy": policy})]
    time_decodes(None, PROMPTS, methods, repeats=2)
    assert [state for state in seen if state] == [7, 8, 9, 10]


def test_runs_that_compile_are_repeated(monkeypatch):
    calls = []
    double = jax.jit(lambda x: 2 * x)

    def decode(params, prompt, **options):
        calls.append(prompt)
        jax.block_until_ready(double(np.zeros(len(calls) if len(calls) < 3 else 2)))
        return output()

    monkeypatch.setattr(jaxspec, "decode", decode)
    runs, compile_seconds = time_decodes(
        None, PROMPTS[:1], parse_methods("ar", budget=4), repeats=2
    )
    assert len(runs) == 2 and len(calls) == 4, "the two calls that compiled are not among the runs"
    assert compile_seconds["ar"] > 0


def test_endless_compilation_is_an_error(monkeypatch):
    shapes = iter(range(1, 100))

    def decode(params, prompt, **options):
        jax.block_until_ready(jax.jit(jnp.sum)(np.zeros(next(shapes))))
        return output()

    monkeypatch.setattr(jaxspec, "decode", decode)
    with pytest.raises(RuntimeError, match="compiled again"):
        time_decodes(None, PROMPTS, parse_methods("ar", budget=4))


def test_bad_repeats():
    with pytest.raises(ValueError, match="repeats is 0"):
        time_decodes(None, PROMPTS, parse_methods("ar", budget=4), repeats=0)
