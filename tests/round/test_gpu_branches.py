"""Rounds as a GPU computes them, on the CPU: what a program does in another way there gives the
same tokens.
"""

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from short_models import load_short
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.round import quick_jit
from pallas_kernels.registry import Device, for_device

CALLS = {
    "jetspec": {"drafter": "jetspec", "builder": "dynamic", "budget": 16},
    "eagle3": {"drafter": "eagle3", "builder": "dynamic", "budget": 16, "temperature": 1.0},
    "lattice": {"drafter": "eagle3", "builder": "lattice", "budget": 16},
    "specblock": {
        "drafter": "specblock",
        "builder": "chain",
        "acceptance": "rejection",
        "temperature": 1.0,
    },
}


INTERPRETED = {
    "best_first": {"drafter": "jetspec", "builder": "best_first", "budget": 32},
    "expand": {"drafter": "jetspec", "builder": "expand", "budget": 32, "temperature": 1.0},
    "top_k": {"drafter": "jetspec", "budget": 16, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "ar": {"drafter": "ar", "temperature": 1.0},
    **CALLS,
}
PROMPT = "def add(a, b):\n"


@pytest.fixture
def elsewhere(monkeypatch):
    """Trace what is not for a CPU."""

    def choose(*operands, cpu, default):
        return default(*operands)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)


def check_same(params, options, device):
    options = options | {"max_new_tokens": 24}
    on_cpu = jaxspec.decode(params, PROMPT, **group_options(**options))
    with for_device(device):  # a part of the keys of jit's caches
        on_gpu = jaxspec.decode(params, PROMPT, **group_options(**options))
    np.testing.assert_array_equal(on_cpu.tokens, on_gpu.tokens)
    jax.tree.map(np.testing.assert_array_equal, vars(on_cpu.per_round), vars(on_gpu.per_round))


@pytest.mark.parametrize("call", slow_except(["jetspec"], CALLS))
@pytest.mark.thorough
def test_rounds_of_a_gpu_give_the_same_tokens(call, elsewhere):
    # Kernels do not run on this one.
    check_same(load_short(None, None), CALLS[call], Device("cuda", (7, 5)))


@pytest.mark.parametrize("major", slow_except([9], [8, 9]))
@pytest.mark.parametrize("call", slow_except(["best_first"], INTERPRETED))
@pytest.mark.thorough
def test_rounds_with_the_kernels_of_a_gpu_give_the_same_tokens(call, major, elsewhere, monkeypatch):
    """All kernels of prefill and rounds, one after the other, interpreted."""
    interpreted, original = [], pl.pallas_call

    def interpret(kernel, *args, compiler_params=None, **options):
        interpreted.append(kernel)
        return original(kernel, *args, **options | {"interpret": True})

    monkeypatch.setattr(pl, "pallas_call", interpret)
    monkeypatch.setattr(quick_jit, "choose_options", lambda *args: {})  # a CPU knows none of them
    # Numbers of cores that no other test names: what these traced would be used again.
    device = Device("cuda", (major, 0), cores=70 + [*INTERPRETED].index(call))
    check_same(load_short(None, None), INTERPRETED[call], device)
    assert len(interpreted) > 2
