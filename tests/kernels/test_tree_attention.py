"""The tree attention kernel in Pallas' interpreter, attention in blocks, and the reference, against
dense attention in float64.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import mark_thorough, slow_except

import jaxspec
from jaxspec.call.options import group_options
from pallas_kernels import reference
from pallas_kernels.attention import blocks
from pallas_kernels.attention.tree_attention import interpreted, tree_attention
from pallas_kernels.registry import Device, Problem, explain, for_device, using
from pallas_kernels.tuning import SHORT_CACHE, Steps, live_steps, tiles
from pallas_kernels.versions import abstract_gpu_mesh


class Case(NamedTuple):
    """Static shape of a call: [B, T, H, D] queries, [B, R, K, D] keys, a cache of S rows of two
    layers.
    """

    batch: int
    rows: int
    keys: int
    heads: int
    kv_heads: int
    dim: int
    capacity: int
    dtype: str = "float32"
    mask: bool = True
    first: bool = False
    window: int | None = None
    cores: int = 16
    scale: float | None = None
    sinks: bool = False
    short: bool = False  # the cache is in fp8

    def more(self) -> dict:
        """What a call gets besides: sinks that weigh as much as keys do, and the scores' factor."""
        sinks = jnp.linspace(-1, 3, self.heads) if self.sinks else None
        return {"window": self.window, "scale": self.scale, "sinks": sinks}


CASES = {
    "mini": Case(2, 20, 20, 5, 1, 64, 150, cores=32),
    "no split": Case(2, 3, 3, 4, 2, 64, 70, cores=1),
    "window, earlier rows": Case(2, 3, 40, 4, 2, 64, 100, first=True, window=9),
    "causal": Case(1, 34, 34, 2, 2, 64, 64, mask=False),
    "sinks": Case(2, 20, 20, 6, 2, 64, 150, window=17, cores=32, scale=0.3, sinks=True),
    "sinks, no split": Case(2, 3, 3, 4, 2, 64, 70, cores=1, sinks=True),
    "fp8 cache": Case(2, 20, 20, 4, 2, 64, 150, dtype="bfloat16", short=True),
    "bfloat16": Case(1, 5, 5, 4, 2, 128, 130, dtype="bfloat16"),
    "prompt": Case(2, 130, 130, 4, 2, 64, 700, mask=False, cores=4),
    "prompt, window": Case(1, 130, 130, 2, 1, 64, 600, mask=False, window=40, cores=32),
    "long cache": Case(1, 3, 3, 2, 1, 64, 1100, first=True),
    "two programs a core": Case(2, 3, 3, 2, 1, 64, 1100, dtype="bfloat16", first=True, cores=2),
}
# name: (function, device that it is traced for)
GPU, CPU = Device("cuda", (9, 0)), Device("cpu")
IMPLEMENTATIONS = {
    "kernel": (interpreted, GPU),
    "reference": (reference.tree_attention, GPU),
    "blocks": (blocks.tree_attention, CPU),
    "parts": (blocks.tree_attention, GPU),
}
# Of the largest value; the result itself is rounded to bfloat16.
TOLERANCE = {"float32": 1e-6, "bfloat16": 8e-3}


# Long prompts are interpreted for seconds; the windowed one is a part of every run.
@pytest.fixture(
    scope="module",
    params=mark_thorough(
        ["sinks", "two programs a core"], slow_except([n for n in CASES if n != "prompt"], CASES)
    ),
)
def case(request):
    return CASES[request.param]


@functools.cache
def compiled(case: Case):
    """All implementations, jitted."""

    @functools.partial(jax.jit, static_argnums=0)
    def apply(name, q, k, v, positions, mask, cache_k, cache_v, layer, length, first):
        function, device = IMPLEMENTATIONS[name]
        prefix = (cache_k, cache_v, layer, length, first)
        with for_device(device if device == CPU else Device("cuda", (9, 0), case.cores)):
            return function(q, k, v, positions, mask, prefix, **case.more())

    return apply


def draw(case: Case, seed: int, lengths, firsts):
    """Arguments of a call. What must not be read is NaN."""
    random = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape), case.dtype)

    q = normal(case.batch, case.rows, case.heads, case.dim)
    k, v = (normal(case.batch, case.keys, case.kv_heads, case.dim) for _ in range(2))
    cache_k, cache_v = (
        normal(2, case.batch, case.kv_heads, case.capacity, case.dim) for _ in range(2)
    )
    if case.short:
        cache_k, cache_v = cache_k.astype(SHORT_CACHE), cache_v.astype(SHORT_CACHE)
    first, length = np.array(firsts, np.int32), np.array(lengths, np.int32)
    mask = random.integers(
        0, 1 << 32, (case.batch, case.rows, -(-case.keys // 32)), dtype=np.uint32
    )
    mask[random.random(mask.shape[:2]) < 0.3] = 0
    positions = length[:, None] + random.integers(0, 5, (case.batch, case.rows)).astype(np.int32)
    rows = np.arange(case.capacity)
    live = (rows >= first[:, None]) & (rows < (first + length)[:, None])
    live = live[None, :, None, :, None] & (np.arange(2) == 1)[:, None, None, None, None]
    return q, k, v, positions, mask, cache_k, cache_v, length, first, live


def dense(case: Case, q, k, v, positions, mask, cache_k, cache_v, length, first):
    """Attention row by row in float64, over just the keys that the row sees."""
    q, k, v, cache_k, cache_v = (
        np.asarray(x, np.float64) for x in (q, k, v, cache_k[1], cache_v[1])
    )
    out, group = np.zeros(q.shape), case.heads // case.kv_heads
    for b, t, h in np.ndindex(*q.shape[:3]):
        place = np.arange(length[b])
        if case.window is not None:
            place = place[place > positions[b, t] - case.window]
        column = np.arange(case.keys)
        seen = column <= t if mask is None else mask[b, t, column // 32] >> (column % 32) & 1 == 1
        keys, values = (
            np.concatenate([cache[b, h // group, first[b] + place], new[b, seen, h // group]])
            for cache, new in ((cache_k, k), (cache_v, v))
        )
        if len(keys):
            scale = case.scale or case.dim**-0.5
            weight = np.exp(keys @ q[b, t, h] * scale)
            sink = np.exp(float(case.more()["sinks"][h])) if case.sinks else 0
            out[b, t, h] = weight / (weight.sum() + sink) @ values
    return out


@st.composite
def requests(draw_one, case: Case):
    """(seed, lengths, firsts) of a call: ragged, empty sequences among them."""
    seed = draw_one(st.integers(0, 1 << 30))
    firsts = [
        draw_one(st.integers(0, case.capacity // 2)) if case.first else 0 for _ in range(case.batch)
    ]
    lengths = [
        draw_one(st.sampled_from([0, 1, 32, 64, 512]) | st.integers(0, case.capacity - begin))
        for begin in firsts
    ]
    return (
        seed,
        [min(length, case.capacity - begin) for length, begin in zip(lengths, firsts, strict=True)],
        firsts,
    )


def check(case: Case, seed, lengths, firsts):
    q, k, v, positions, mask, cache_k, cache_v, length, first, live = draw(
        case, seed, lengths, firsts
    )
    mask = mask if case.mask else None
    want = dense(case, q, k, v, positions, mask, cache_k, cache_v, length, first)
    first_row = first if case.first else None
    for name in IMPLEMENTATIONS:
        # The kernel loads no row that it must not see. The others multiply such rows with a weight
        # of zero.
        poison = jnp.nan if name == "kernel" else 400 if case.short else 1e4
        caches = (jnp.where(live, cache, poison) for cache in (cache_k, cache_v))
        got = compiled(case)(
            name, q, k, v, positions, mask, *caches, np.int32(1), length, first_row
        )
        assert got.dtype == q.dtype
        got = np.asarray(got, np.float64)
        np.testing.assert_allclose(
            got, want, rtol=0, atol=TOLERANCE[case.dtype] * max(1.0, np.abs(want).max())
        )
        assert (got[want == 0] == 0).all(), "a row that sees nothing must give zeros"


@settings(max_examples=8, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_the_kernel_is_dense_attention(case, data):
    check(case, *data.draw(requests(case)))


@pytest.mark.parametrize("length", [130, 1100])
def test_two_programs_a_core_read_the_last_row_of_a_prefix(length):
    case = CASES["two programs a core"]
    q, k, v, positions, mask, cache_k, cache_v, lengths, *_ = draw(case, 1, [length, 400], [0, 0])
    # One row of a thousand others moves a mean by less than bfloat16 shows, unless it is large.
    cache_v = cache_v.at[:, 0, :, length - 1].set(1e5)
    given = (q, k, v, positions, mask, cache_k, cache_v, np.int32(1), lengths, None)
    got, want = (
        np.asarray(compiled(case)(name, *given), np.float32) for name in ("kernel", "blocks")
    )
    np.testing.assert_allclose(got, want, rtol=0.05)
    assert (want[0] > 1).all()


def test_rows_that_see_nothing_give_zeros():
    case = CASES["mini"]
    q, k, v, positions, mask, cache_k, cache_v, length, _, _ = draw(case, 0, [0, 0], [0, 0])
    mask = np.zeros_like(mask)
    for name in IMPLEMENTATIONS:
        out = compiled(case)(
            name, q, k, v, positions, mask, cache_k, cache_v, np.int32(1), length, None
        )
        np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("name", ["mini", "no split"])
def test_what_is_not_finite_stays_in_its_sequence(name):
    case = CASES[name]
    lengths, firsts = [case.capacity, 40], [0, 0]
    q, k, v, positions, mask, cache_k, cache_v, length, *_ = draw(case, 4, lengths, firsts)

    def attend(cache_k):
        given = (q, k, v, positions, mask, cache_k, cache_v, np.int32(1), length, None)
        return np.asarray(compiled(case)("kernel", *given))

    got = attend(cache_k.at[:, 0].set(jnp.nan))
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], attend(cache_k)[1])


def test_the_cases_reach_every_path():
    cut = {
        name: tiles(Problem.of(*_shapes(case)), Device("cuda", (9, 0), case.cores))
        for name, case in CASES.items()
    }
    assert cut["no split"].splits == 1 and cut["mini"].splits > 1
    assert cut["mini"].rows < 20 * 5, "more than one block of query rows"
    assert cut["prompt"].splits == 1 and cut["prompt, window"].splits > 1
    assert min(cut[name].keys for name in ("prompt", "prompt, window")) < 130, "several steps"
    assert cut["two programs a core"].per_core == cut["two programs a core"].splits == 2


def test_a_hopper_runs_two_programs_a_core_where_the_prefix_may_be_long():
    def cut(rows: int, capacity: int, capability: tuple[int, int] = (9, 0)):
        problem = Problem(1, rows, 32, 8, 128, frozenset({"bfloat16"}), capacity)
        found = tiles(problem, Device("cuda", capability, 132))
        return found.splits, found.per_core

    # Measured on an H100: 70 us with 4 splits and 47 with 8 at 8,192 rows, 18 and 22 at 1,024.
    assert [cut(64, capacity) for capacity in (2048, 8192)] == [(4, 1), (8, 2)]
    assert [cut(256, capacity) for capacity in (512, 8192)] == [(1, 1), (2, 2)]
    assert cut(64, 8192, (8, 0)) == (4, 1)

    def steps(name, device):
        return live_steps(Problem.of(*_shapes(CASES[name])), device)

    assert steps("mini", CPU).keys < 150 and 150 % steps("mini", CPU).keys, "an odd last block"
    assert steps("prompt", CPU).keys == steps("prompt", GPU).keys < 700
    assert steps("causal", CPU) == Steps(None, (64,))
    assert steps("long cache", GPU) == Steps(None, (512, 1100))


def _shapes(case: Case, layers: int = 2):
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.dtype(case.dtype))
    cache = shape((layers, case.batch, case.kv_heads, case.capacity, case.dim))
    new = shape((case.batch, case.keys, case.kv_heads, case.dim))
    return shape((case.batch, case.rows, case.heads, case.dim)), new, new, (cache, cache)


@pytest.mark.parametrize("name", ["kernel", "blocks"])
def test_the_derivative_is_the_references(name):
    case = CASES["mini"]
    q, k, v, positions, mask, cache_k, cache_v, length, _, _ = draw(case, 3, [5, 9], [0, 0])

    def loss(*arrays):
        prefix = (*arrays[3:], np.int32(1), length, None)
        return jnp.square(IMPLEMENTATIONS[name][0](*arrays[:3], positions, mask, prefix)).sum()

    arrays, own = (q, k, v, cache_k, cache_v), {"kernel": "pallas_call", "blocks": "while"}[name]
    assert own in str(jax.make_jaxpr(loss)(*arrays))
    derivative = jax.make_jaxpr(jax.grad(loss, argnums=range(5)))(*arrays)
    assert own not in str(derivative)
    assert [out.shape for out in derivative.out_avals] == [array.shape for array in arrays]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernel_lowers_for_a_gpu_without_touching_the_cache(dtype):
    """Lowering finds what the interpreter does not: shapes that are no powers of two, types that do
    not fit.
    """
    case = Case(2, 16, 16, 10, 2, 128, 4096, dtype)
    q, k, v, cache = _shapes(case, layers=3)
    counts = jax.ShapeDtypeStruct((2, 16), jnp.int32), jax.ShapeDtypeStruct((2, 16, 1), jnp.uint32)

    def attend(q, k, v, positions, mask, cache_k, cache_v, length):
        prefix = (cache_k, cache_v, 1, length, None)
        choice = explain("tree_attention", Problem.of(q, k, v, prefix))
        assert choice.function is tree_attention
        return choice.function(q, k, v, positions, mask, prefix, 100)

    length = jax.ShapeDtypeStruct((2,), jnp.int32)
    with (
        for_device(Device("cuda", (9, 0), 132)),
        jax.sharding.use_abstract_mesh(abstract_gpu_mesh("NVIDIA H100 80GB HBM3", 132)),
    ):
        text = (
            jax.jit(attend)
            .trace(q, k, v, *counts, *cache, length)
            .lower(lowering_platforms=("cuda",))
            .as_text()
        )
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == 2
    kept = f"3x2x2x4096x128x{'bf16' if dtype == 'bfloat16' else 'f32'}"
    changed = [
        line for line in text.splitlines() if f"-> tensor<{kept}>" in line and "func" not in line
    ]
    assert not changed, changed


@pytest.mark.slow
def test_decoding_with_the_kernel_gives_the_same_tokens():
    params = jaxspec.load("mini", drafter="jetspec", dtype="float32")
    options = dict(max_new_tokens=12, builder="best_first", budget=8, ignore_eos=True)
    prompts = ["Question: A shop sells pens at 3 dollars each.", "def read_lines(path):\n"]
    want = jaxspec.decode(params, prompts, **group_options(**options))
    with using("interpret"):
        got = jaxspec.decode(params, prompts, **group_options(**options))
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        assert ours.stats.rounds == theirs.stats.rounds
