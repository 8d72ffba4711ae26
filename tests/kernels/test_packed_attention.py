"""Attention of packed rows by tiles, in Pallas' interpreter, against rows laid out by sequence."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import mark_thorough, slow_except

from jaxspec.serve.on_device.packed_rows import pack
from pallas_kernels.attention import packed_attention
from pallas_kernels.attention.packed_attention import (
    by_sequence,
    interpreted,
    most_tiles,
    tile_rows,
)
from pallas_kernels.registry import Device, Problem, explain, for_device, using
from pallas_kernels.tuning import packed_tiles
from pallas_kernels.versions import abstract_gpu_mesh


class Case(NamedTuple):
    """R packed rows of H query heads, `counts` of each sequence, over caches of `lengths` of S
    rows.
    """

    rows: int
    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    capacity: int = 150
    dtype: str = "float32"
    window: int | None = None
    first: bool = False
    cores: int = 16
    scale: float | None = None
    sinks: bool = False

    def problem(self) -> Problem:
        shape = (1, self.rows, self.heads, self.kv_heads, self.dim)
        return Problem(*shape, frozenset({self.dtype}), self.capacity)

    def cut(self):
        return packed_tiles(self.problem(), self.device(), len(self.counts))

    def device(self) -> Device:
        return Device("cuda", (9, 0), self.cores)


CASES = {
    "ragged": Case(48, (0, 1, 40, 3), (70, 0, 150, 33), cores=32),
    "one part": Case(24, (5, 0, 12), (150, 20, 65), cores=1),
    "no padding": Case(16, (1, 1, 13, 1), (1, 64, 149, 32), heads=2),
    "group of 4": Case(32, (20, 1, 6), (100, 128, 0), heads=8, dtype="bfloat16"),
    "group of 8": Case(20, (3, 0, 14), (99, 150, 31), heads=8, kv_heads=1, dim=128),
    "group of 3": Case(20, (3, 0, 14), (99, 150, 31), heads=6, dtype="bfloat16", cores=1),
    "more slots than rows": Case(4, (1, 0, 0, 1, 1, 0), (9, 150, 3, 140, 0, 1)),
    "window": Case(40, (2, 35, 0), (150, 90, 20), window=20, cores=32),
    "sinks": Case(40, (2, 35, 0), (150, 0, 20), window=20, cores=32, scale=0.2, sinks=True),
    "earlier rows": Case(16, (9, 0, 4), (40, 30, 61), window=30, first=True, dtype="bfloat16"),
    "wide mask": Case(80, (70, 2), (50, 0), dim=128, dtype="bfloat16", cores=1),
    "idle": Case(8, (0, 0), (12, 100)),
}
# Both results are rounded to bfloat16.
TOLERANCE = {"float32": 5e-6, "bfloat16": 3e-2}


@pytest.fixture(
    params=mark_thorough(
        ["ragged", "group of 4"],
        slow_except(["ragged", "one part", "sinks", "group of 4", "earlier rows", "idle"], CASES),
    )
)
def case(request):
    return CASES[request.param]


def draw(case: Case, seed: int = 0):
    """Arguments of a call. What must not be read is NaN."""
    random = np.random.default_rng(seed)
    sequences, width = len(case.counts), max(*case.counts, 1)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape), case.dtype)

    q = normal(1, case.rows, case.heads, case.dim)
    k, v = (normal(1, case.rows, case.kv_heads, case.dim) for _ in range(2))
    caches = [normal(2, sequences, case.kv_heads, case.capacity, case.dim) for _ in range(2)]
    mask = random.integers(0, 1 << 32, (sequences, width, -(-width // 32)), dtype=np.uint32)
    mask[random.random(mask.shape[:2]) < 0.2] = 0
    counts = jnp.asarray(case.counts, jnp.int32)
    packing = pack(counts, case.rows, width)
    length = np.array(case.lengths, np.int32)
    first = random.integers(0, case.capacity - length + 1).astype(np.int32) * case.first
    positions = (length[packing.slot] + random.integers(0, 5, case.rows).astype(np.int32))[None]
    # Rows of the mask see only those that the sequence has, as those of a tree do.
    own = np.arange(32 * mask.shape[2]) < np.array(case.counts)[:, None]
    mask &= np.packbits(own, axis=-1, bitorder="little").view(np.uint32)[:, None]
    slots = np.arange(case.capacity)
    live = (slots >= first[:, None]) & (slots < (first + length)[:, None])
    live = live[None, :, None, :, None] & (np.arange(2) == 1)[:, None, None, None, None]
    caches = [jnp.where(live, cache, jnp.nan) for cache in caches]
    return q, k, v, positions, mask, caches, length, first, packing


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute(case, name, q, k, v, positions, mask, caches, length, first, packing):
    prefix = (*caches, np.int32(1), length, first if case.first else None)
    with for_device(case.device()), using(name):
        function = {"reference": by_sequence, "interpret": interpreted}[name]
        sinks = jnp.linspace(-1, 3, case.heads) if case.sinks else None
        more = {"window": case.window, "scale": case.scale, "sinks": sinks}
        return function(q, k, v, positions, mask, prefix, packing, **more)


def test_tiles_give_what_rows_by_sequence_give(case):
    given, own = draw(case), slice(0, sum(case.counts))
    # The reference multiplies what it does not see with a weight of zero.
    clean = [jnp.nan_to_num(cache) for cache in given[5]]
    want = np.asarray(compute(case, "reference", *given[:5], clean, *given[6:])[0, own], float)
    # Padding may hold anything: no other row reads it.
    spoiled = [x.at[:, own.stop :].set(jnp.nan) for x in given[:3]]
    for arrays in (given[:3], spoiled):
        got = compute(case, "interpret", *arrays, *given[3:])
        assert got.dtype == given[0].dtype and got.shape == given[0].shape
        assert (np.asarray(got[0, own.stop :]) == 0).all()
        got = np.asarray(got[0, own], float)
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[case.dtype])
        nothing = (want == 0).all(-1)
        assert (got[nothing] == 0).all(), "a row that sees nothing must give zeros"


def test_what_is_not_finite_stays_in_its_sequence():
    case = CASES["ragged"]
    given, begin = draw(case), case.counts[0] + case.counts[1]
    want = np.array(compute(case, "interpret", *given)[0])
    caches = [cache.at[:, 2].set(jnp.nan) for cache in given[5]]
    rows = slice(begin, begin + case.counts[2])
    q, k, v = (x.at[:, rows].set(jnp.nan) for x in given[:3])
    got = np.array(compute(case, "interpret", q, k, v, *given[3:5], caches, *given[6:])[0])
    assert np.isnan(got[rows]).all(), "who reads NaN must show it: the engine ends the request"
    got[rows] = want[rows]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("counts", [(5, 0, 9), (1, 1, 1), (0, 0, 0), (16, 0, 0), (4, 4, 8)])
@pytest.mark.parametrize("most", [1, 3, 4, 16])
def test_tiles_hold_every_row_once(counts, most):
    lengths, rows = (7, 8, 9), 16
    table = np.asarray(tile_rows(jnp.asarray(counts), jnp.asarray(lengths), rows, most))
    assert len(table) == most_tiles(rows, len(counts), most)
    assert ((table[:, 2] - table[:, 1]) <= most).all()
    begins, found = np.cumsum(counts) - counts, []
    for sequence, first, end, begin, count, length in table:
        found += range(first, end)
        if begin < sum(counts) and end > first:
            assert begin == begins[sequence] <= first and end <= begin + count
            assert (count, length) == (counts[sequence], lengths[sequence])
        else:  # padding, and tiles that are left over
            assert (count, length) == (0, 0)
    assert sorted(found) == list(range(rows))


def test_no_packing_needs_more_tiles_than_there_are():
    for rows, most in ((5, 2), (9, 4), (7, 16)):
        needed = 0
        for one, two in np.ndindex(rows + 1, rows + 1):
            parts = (one, two, rows - one - two)
            if parts[2] >= 0:
                needed = max(needed, sum(-(-part // most) for part in parts))
        assert needed == most_tiles(rows, 2, most)


def test_the_cases_reach_every_path():
    cut = {name: case.cut() for name, case in CASES.items()}
    assert cut["one part"].splits == 1 and cut["ragged"].splits > 1
    most = {name: cut[name].rows // (case.heads // case.kv_heads) for name, case in CASES.items()}
    assert most["ragged"] < 40 and most["group of 4"] < 20, "a sequence of several tiles"
    assert cut["group of 3"].rows % 3, "query rows that are left over"
    assert min(cut["ragged"].keys, cut["one part"].keys) < 150, "several steps"


@pytest.mark.parametrize("group", [1, 4, 7, 16, 71])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_tile_holds_a_row_of_any_group(group, dtype):
    for rows, slots in ((1, 1), (16, 16), (128, 16), (512, 2)):
        problem = Problem(1, rows, 2 * group, 2, 128, frozenset({dtype}), 4096)
        assert packed_tiles(problem, Device("cuda", (9, 0), 132), slots).rows >= max(16, group)


def test_the_registry_packs_where_triton_runs():
    problem, hopper = CASES["ragged"].problem(), Device("cuda", (9, 0), 132)
    triton = packed_attention.packed_attention
    assert explain("packed_attention", problem, hopper).function is triton
    with using("interpret"):
        assert explain("packed_attention", problem, Device("cpu")).function is interpreted
    for device in (Device("cpu"), Device("cuda", (7, 5))):
        assert explain("packed_attention", problem, device).function is by_sequence


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_lowers_for_a_gpu_without_touching_the_cache(dtype):
    """Lowering finds what the interpreter does not, as shapes that are no powers of two. A table of
    tiles is all that XLA has to make.
    """
    case = Case(32, (9, 1, 5), (0,) * 3, heads=16, dim=128, capacity=16, dtype=dtype)
    shape, given = jax.ShapeDtypeStruct, draw(case)
    q, k, v, positions, mask, _, length, _, packing = jax.tree.map(
        lambda x: shape(x.shape, x.dtype), given
    )
    caches = [shape((2, 3, 2, 4096, 128), dtype)] * 2

    def attend(q, k, v, positions, mask, caches, length, packing):
        for layer in range(2):
            prefix = (*caches, layer, length, None)
            q = packed_attention.packed_attention(q, k, v, positions, mask, prefix, packing, 100)
        return q

    with (
        for_device(Device("cuda", (9, 0), 132)),
        jax.sharding.use_abstract_mesh(abstract_gpu_mesh("NVIDIA H100 80GB HBM3", 132)),
    ):
        lowered = jax.jit(attend).trace(q, k, v, positions, mask, caches, length, packing)
        text = lowered.lower(lowering_platforms=("cuda",)).as_text()
    # An attention and a merge a layer. jax 0.7 lowers both layers, which are alike, to one
    # function.
    kernels = 2 if jax.__version_info__ < (0, 10) else 4
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == kernels
    kept = f"2x3x2x4096x128x{'bf16' if dtype == 'bfloat16' else 'f32'}"
    changed = [
        line for line in text.splitlines() if f"-> tensor<{kept}>" in line and "func" not in line
    ]
    assert not changed, changed
