"""Bytes and products counted from optimised HLO: a text by hand, and XLA's own count on a CPU."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.aot.traffic import count_traffic

HLO = """\
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%product (p0: bf16[64,128], p1: bf16[128,256]) -> bf16[64,256] {
  %p0 = bf16[64,128]{1,0} parameter(0)
  %p1 = bf16[128,256]{1,0} parameter(1)
  ROOT %dot.1 = bf16[64,256]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%rows (p0: f32[1000,256], p1: s32[64]) -> f32[64,256] {
  %p0 = f32[1000,256]{1,0} parameter(0)
  %p1 = s32[64]{0} parameter(1)
  %doubled = f32[1000,256]{1,0} add(%p0, %p0)
  ROOT %gather.1 = f32[64,256]{1,0} gather(%doubled, %p1), offset_dims={1}
}

%write (p0: f32[1000,256], p1: f32[1,256]) -> f32[1000,256] {
  %p0 = f32[1000,256]{1,0} parameter(0)
  %p1 = f32[1,256]{1,0} parameter(1)
  %zero = s32[] constant(0)
  ROOT %update = f32[1000,256]{1,0} dynamic-update-slice(%p0, %p1, %zero, %zero)
}

%body (arg: (bf16[64,128], bf16[128,256])) -> (bf16[64,128], bf16[128,256]) {
  %arg = (bf16[64,128]{1,0}, bf16[128,256]{1,0}) parameter(0)
  %x = bf16[64,128]{1,0} get-tuple-element(%arg), index=0
  %w = bf16[128,256]{1,0} get-tuple-element(%arg), index=1
  %gemm = bf16[64,256]{1,0} fusion(%x, %w), kind=kCustom, calls=%product
  ROOT %tuple = (bf16[64,128]{1,0}, bf16[128,256]{1,0}) tuple(%x, %w)
}

%few (arg: f32[1000,256]) -> f32[1000,256] {
  %arg.1 = f32[1000,256]{1,0} parameter(0)
  %row = f32[1,256]{1,0} constant({...})
  ROOT %written = f32[1000,256]{1,0} fusion(%arg.1, %row), kind=kLoop, calls=%write
}

%many (arg: f32[1000,256]) -> f32[1000,256] {
  %arg.2 = f32[1000,256]{1,0} parameter(0)
  ROOT %copied = f32[1000,256]{1,0} copy(%arg.2)
}

ENTRY %main (p: f32[1000,256], i: s32[64]) -> f32[64,256] {
  %p = f32[1000,256]{1,0} parameter(0)
  %i = s32[64]{0} parameter(1)
WORK
  ROOT %out = f32[64,256]{1,0} fusion(%p, %i), kind=kLoop, calls=%rows
}
"""
GATHER = {"read": 64 * 256 * 4 + 64 * 4, "written": 64 * 256 * 4, "flops": 0, "kernels": 1}
TUPLE = "(bf16[64,128]{1,0}, bf16[128,256]{1,0})"
TRIPS = 'backend_config={"known_trip_count":{"n":"3"}}'
LOOP = f"  %while.1 = {TUPLE} while(%t), condition=%c, body=%body, {TRIPS}"
BRANCH = "  %cond.1 = f32[1000,256]{1,0} conditional(%b, %p, %p), branch_computations={%few, %many}"
KERNEL = '  %own = f32[64,256]{1,0} custom-call(%p), custom_call_target="__gpu$xla.gpu.triton"'


def test_a_lookup_reads_what_it_needs():
    """Also through an operation that the compiler fused with it."""
    assert count_traffic(HLO.replace("WORK\n", "")) == GATHER


def test_a_round_is_a_turn_of_the_outermost_loop():
    read, written = 2 * (64 * 128 + 128 * 256), 2 * 64 * 256
    found = count_traffic(HLO.replace("WORK", LOOP))
    assert found == {"read": read, "written": written, "flops": 2 * 64 * 128 * 256, "kernels": 1}


def test_of_branches_the_largest_counts_and_updates_are_in_place():
    size = 1000 * 256 * 4
    found = count_traffic(HLO.replace("WORK", BRANCH))
    assert found["read"] == GATHER["read"] + size and found["written"] == GATHER["written"] + size
    found = count_traffic(HLO.replace("WORK", BRANCH.replace("%many", "%few")))
    assert found["written"] == GATHER["written"] + 1024 and found["kernels"] == 2


def test_a_fallback_is_told_apart():
    """A conditional in a scope of this name, without its branch of most traffic."""
    branch = BRANCH + ', metadata={op_name="jit(run)/while/body/fallback/cond"}'
    found, plain = (count_traffic(HLO.replace("WORK", one)) for one in (branch, BRANCH))
    common = found.pop("common")
    assert found == plain
    few = count_traffic(HLO.replace("WORK", BRANCH.replace("%many", "%few")))
    assert common == few and common["read"] < found["read"]


def test_a_workspace_of_a_library_is_no_result():
    line = '  %own = RESULT custom-call(%p, %p), custom_call_target="__cublas$lt$matmul"'
    plain, scratch = (
        count_traffic(HLO.replace("WORK", line.replace("RESULT", result)))
        for result in ("f32[64,256]{1,0}", "(f32[64,256]{1,0}, s8[33554432]{0})")
    )
    assert plain == scratch and plain["written"] == 2 * GATHER["written"]


def test_kernels_of_pallas_count_with_what_they_write():
    found = count_traffic(HLO.replace("WORK", KERNEL))
    assert found == GATHER | {"written": 2 * GATHER["written"], "kernels": 2}


@pytest.mark.parametrize(
    "function",
    [lambda x, w: x @ w, lambda x, w: jnp.exp(x).sum(1) + w[0, 0], lambda x, w: x[3:5, :7] * 2],
)
def test_agrees_with_xla(function):
    """Its own count of bytes, and of the operations of the product."""
    x, w = jnp.zeros((160, 320)), jnp.zeros((320, 64))
    compiled = jax.jit(function).lower(x, w).compile()
    found, own = count_traffic(compiled.as_text()), compiled.cost_analysis()
    assert found["read"] + found["written"] == pytest.approx(own["bytes accessed"], rel=0.01)
    if found["flops"]:
        assert found["flops"] == own["flops"] == 2 * 160 * 320 * 64
