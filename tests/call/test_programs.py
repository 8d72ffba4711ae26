"""How many programs calls compile: few, and none in a second process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.core.runtime.compilations import compilations
from jaxspec.round import sizes

CHAT = Path(__file__).parents[1] / "helpers" / "growing_chat.py"


@pytest.fixture(scope="module")
def mini():
    return load_short("jetspec", None)


@pytest.mark.slow
def test_a_growing_chat_compiles_six_programs_and_none_in_a_second_process(tmp_path):
    """With the default settings: a policy that probes its costs, and programs kept on disk."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    own |= {"JAX_PLATFORMS": "cpu", "JAXSPEC_CACHE": str(tmp_path), "XLA_FLAGS": ""}
    seen = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(CHAT)], env=own, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    first, second = seen
    assert first["tokens"] == second["tokens"] > 7500
    assert 4 <= first["compiled"] <= 6 and first["missed"] == first["compiled"]
    assert second["compiled"] <= 6 and second["missed"] == 0


@pytest.mark.thorough
def test_prompts_and_limits_of_a_capacity_share_their_programs(mini):
    fixed = dict(capacity=1024, policy=None, budget=4)
    jaxspec.decode(mini, [1, 2, 3], max_new_tokens=9, **group_options(**fixed))
    before = compilations()
    outs = [
        jaxspec.decode(
            mini, [1] * prompt, max_new_tokens=limit, seed=prompt, **group_options(**fixed)
        )
        for prompt, limit in ((2, 2), (64, 40), (65, 64), (500, 33))
    ]
    assert compilations() == before
    assert [out.stats.emitted for out in outs] == [2, 40, 64, 33]


def test_capacities_are_powers_of_two_up_to_the_models_positions(monkeypatch):
    monkeypatch.setattr(sizes, "prompt_chunk", lambda: 64)

    def choose(prompt, limit=100, **options):
        return sizes.choose_capacity(prompt, limit, 40, 5000, **options)

    assert [choose(n) for n in (1, 116, 117, 372, 373, 3000)] == [256, 256, 512, 512, 1024, 4096]
    # All positions and the rows that rounds write beyond them, in whole chunks.
    assert choose(4900) == choose(4000) == 5056
    assert [choose(n, grows=True) for n in (1, 1900, 1909, 3000)] == [2048, 2048, 5056, 5056]
    needs = [sizes.rows_needed(n, 100, 40) for n in range(1, 4901, 7)]
    assert all(choose(n) >= need for n, need in zip(range(1, 4901, 7), needs, strict=True))


def test_a_conversation_leaves_room_to_grow(mini):
    messages = [{"role": "user", "content": "Hello"}]
    text = prepare(mini, "Hello", max_new_tokens=16)
    assert prepare(mini, messages, max_new_tokens=16).capacity > text.capacity == 256
    assert prepare(mini, [messages] * 2, max_new_tokens=16).capacity == 256


def test_a_fixed_capacity_must_hold_the_call(mini):
    assert prepare(mini, [1] * 20, max_new_tokens=16, capacity=100).capacity == 128
    with pytest.raises(ValueError, match="need 192 rows"):
        prepare(mini, [1] * 100, max_new_tokens=40, drafter="ar", capacity=128)
    with pytest.raises(TypeError, match="capacity"):
        prepare(mini, [1], capacity=1.5)


def test_after_a_warmup_calls_of_its_sizes_compile_nothing(mini, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))  # the policy has yet to probe
    warm = jaxspec.warmup(mini, prompt_tokens=(40, 60), max_new_tokens=60)
    assert warm.capacities == (256,) and warm.programs > 0 and warm.seconds > 0
    before = compilations()
    jaxspec.decode(mini, [5] * 60, max_new_tokens=50, seed=2, stop=[7])
    list(jaxspec.stream(mini, [5] * 30, max_new_tokens=40))
    assert compilations() == before
    again = jaxspec.warmup(mini, prompt_tokens=60, max_new_tokens=60)
    assert again.programs == 0


@pytest.mark.slow
def test_a_warmup_of_a_batch_is_one_of_its_options(mini):
    options = dict(budget=4, temperature=0.5, max_new_tokens=20)
    jaxspec.warmup(mini, prompt_tokens=10, batch=3, **group_options(**options))
    before = compilations()
    prompts = [[1, 2], [3] * 9, [4]]
    options["temperature"] = 1.5
    assert [
        len(out.tokens) for out in jaxspec.decode(mini, prompts, **group_options(**options))
    ] == [20] * 3
    assert compilations() == before
    with pytest.raises(TypeError, match="prompt_tokens"):
        jaxspec.warmup(mini, prompt_tokens=[2.5])


def test_tokens_do_not_depend_on_the_capacity(mini):
    prompt = np.random.default_rng(3).integers(0, 4000, 130).tolist()
    options = dict(drafter="ar", max_new_tokens=12)
    least, most = (
        jaxspec.decode(mini, prompt, capacity=rows, **group_options(**options)).tokens
        for rows in (192, 512)
    )
    assert least == most
