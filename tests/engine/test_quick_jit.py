"""Programs of a CPU are compiled without passes over loops, those of a Hopper without timing sums."""

import jax
import jax.numpy as jnp

from jaxspec.engine import quick_jit as module
from jaxspec.engine.quick_jit import LEFT_OUT, UNTIMED_SUMS, knows_options, quick_jit
from pallas_kernels.device import Device, for_device


@quick_jit(static_argnames=("count",))
def add_up(x: jax.Array, start: jax.Array, *, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda i, total: total + x[i], start)


def test_programs_for_a_cpu_leave_passes_over_loops_out():
    assert add_up(jnp.arange(4.0), 0.0, count=4) == 6
    quick, whole = add_up.choose(), _on_gpu(add_up.choose)
    assert quick is not whole
    text = [one.lower(jnp.arange(4.0), 0.0, count=1).compile().as_text() for one in (quick, whole)]
    # `simplify-while-loops` removes a loop of one step.
    assert "simplify-while-loops" in LEFT_OUT
    assert [" while(" in one for one in text] == [True, False]


def _on_gpu(function, capability=(8, 0)):
    with for_device(Device("cuda", capability)):
        return function()


def test_a_hopper_does_not_time_sums_if_xla_knows_how_to_leave_that(monkeypatch):
    old, new = (_on_gpu(add_up.choose, capability) for capability in ((8, 0), (9, 0)))
    assert (old is not new) == knows_options(tuple(UNTIMED_SUMS))
    assert not knows_options(("xla_gpu_no_such_option",))
    monkeypatch.setattr(module, "knows_options", lambda names: False)
    assert _on_gpu(add_up.choose, (9, 0)) is old


def test_programs_inside_another_are_compiled_with_it():
    doubled = jax.jit(lambda x: 2 * add_up(x, x[0], count=3))
    assert doubled(jnp.arange(4.0)) == 6
