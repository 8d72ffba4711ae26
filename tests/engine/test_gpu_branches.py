"""Rounds as a GPU computes them, on the CPU: what a program does in another way there gives the
same tokens.
"""

import jax
import numpy as np
import pytest
from short_models import load_short
from slow_cases import slow_except

import jaxspec
from pallas_kernels.registry import Device, for_device

CALLS = {
    "jetspec": {"method": "jetspec", "builder": "dynamic", "budget": 16},
    "eagle3": {"method": "eagle3", "builder": "dynamic", "budget": 16, "temperature": 1.0},
    "lattice": {"method": "eagle3", "builder": "lattice", "budget": 16},
    "specblock": {
        "method": "specblock",
        "builder": "chain",
        "acceptance": "rejection",
        "temperature": 1.0,
    },
}


@pytest.mark.parametrize("call", slow_except(["jetspec"], CALLS))
def test_rounds_of_a_gpu_give_the_same_tokens(call, monkeypatch):
    params, options = load_short(None, None), CALLS[call] | {"max_new_tokens": 24}
    prompt = "def add(a, b):\n"
    on_cpu = jaxspec.decode(params, prompt, **options)

    def elsewhere(*operands, cpu, default):
        return default(*operands)

    monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
    # A device is part of the keys of jit's caches. Kernels do not run on this one.
    with for_device(Device("cuda", (7, 5))):
        on_gpu = jaxspec.decode(params, prompt, **options)
    np.testing.assert_array_equal(on_cpu.tokens, on_gpu.tokens)
    jax.tree.map(np.testing.assert_array_equal, vars(on_cpu.per_round), vars(on_gpu.per_round))
