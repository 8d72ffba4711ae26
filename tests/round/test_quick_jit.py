"""Programs of a CPU are compiled without passes over loops, those of a Hopper without XLA's Triton."""

import collections
import os

import jax
import jax.numpy as jnp

from jaxspec.round import quick_jit as module
from jaxspec.round.quick_jit import (
    LEFT_OUT,
    choose_options,
    find_known,
    knows_options,
    quick_jit,
)
from pallas_kernels.caution import ALLOW, CAUTIOUS
from pallas_kernels.device import Device, for_device

Weights = collections.namedtuple("Weights", "target")
AMPERE, HOPPER, BLACKWELL = (Device("cuda", (major, 0)) for major in (8, 9, 10))


@quick_jit(leave_out=True, static_argnames=("count",))
def add_up(x: jax.Array, start: jax.Array, *, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda i, total: total + x[i], start)


def choose_for(device):
    with for_device(device):
        return add_up.choose()


def test_programs_for_a_cpu_leave_passes_over_loops_out():
    assert add_up(jnp.arange(4.0), 0.0, count=4) == 6
    quick, whole = add_up.choose(), choose_for(AMPERE)
    assert quick is not whole
    text = [one.lower(jnp.arange(4.0), 0.0, count=1).compile().as_text() for one in (quick, whole)]
    # `simplify-while-loops` removes a loop of one step.
    assert "simplify-while-loops" in LEFT_OUT
    assert [" while(" in one for one in text] == [True, False]


def test_xla_writes_no_triton_kernels_on_a_hopper(monkeypatch):
    known = find_known()
    assert known and known.items() <= CAUTIOUS.items()
    assert choose_options(HOPPER) == choose_options(BLACKWELL) == known
    assert choose_options(AMPERE) == choose_options(Device("cuda", (8, 9))) == {}
    assert choose_for(HOPPER) is choose_for(BLACKWELL) is not choose_for(AMPERE)
    assert add_up._cache_size() == sum(one._cache_size() for one in add_up._made.values())
    # Only Triton's products read quantised weights as they are.
    quantized = choose_options(HOPPER, quantized=True)
    assert known.keys() - quantized == {"xla_gpu_enable_triton_gemm"}
    with for_device(HOPPER):
        plain, scaled = (add_up.choose(Weights(target)) for target in ({}, {"quant": {}}))
    assert plain is choose_for(HOPPER) is not scaled
    monkeypatch.setenv(ALLOW, "xla_gpu_enable_triton_gemm,xla_disable_hlo_passes")
    assert known.keys() - choose_options(HOPPER) == set(os.environ[ALLOW].split(","))
    monkeypatch.setenv(ALLOW, "all")
    assert choose_options(HOPPER) == {} and choose_for(HOPPER) is choose_for(AMPERE)


def test_options_that_an_older_xla_does_not_know_are_left_out(monkeypatch):
    assert not knows_options({"xla_gpu_no_such_option": False})
    name = "xla_gpu_command_buffer_scheduling_mode"
    assert not knows_options({name: "NO_SUCH_MODE"})
    monkeypatch.setattr(module, "CAUTIOUS", {"xla_gpu_no_such_option": False, **CAUTIOUS})
    find_known.cache_clear()
    found = find_known()
    find_known.cache_clear()
    assert "xla_gpu_no_such_option" not in found and "xla_disable_hlo_passes" in found


def test_programs_inside_another_are_compiled_with_it():
    doubled = jax.jit(lambda x: 2 * add_up(x, x[0], count=3))
    assert doubled(jnp.arange(4.0)) == 6
