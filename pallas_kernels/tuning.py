"""Decide where the tree attention kernels run, and with which block sizes.

Block sizes depend on compute capability, head dimension, dtype and rows. They compile without
spilling registers and fit the shared memory (per block 99 KB on compute capability 8.6, 8.9 and
12.x, 163 KB on 8.0, 227 KB on 9.0 and 10.x). Of these, only the programs of a prefix on an H100
were chosen by measuring times.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from pallas_kernels import versions
from pallas_kernels.device import Device

HEAD_DIMS = (64, 128, 256)
DTYPES = ("bfloat16", "float16", "float32")
# Of caches alone; GPUs before Ada cannot convert it.
SHORT_CACHE, LEAST_SHORT = "float8_e4m3fn", (8, 9)
# Multiprocessors of a common GPU of each generation, for devices that do not report theirs.
_CORES = {(8, 0): 108, (8, 6): 82, (8, 9): 58, (9, 0): 132, (10, 0): 148}
# Attention in plain JAX. A block of keys should stay in a CPU core's cache between its copy and the
# product that reads it, and be large enough to pay for a step of the loop.
BLOCK_BYTES = 1 << 20
LOOP_ROWS = 128
LEAST_PART = 512
# Columns of the tree per step: one word of the mask.
TREE_KEYS = 32
# Steps that make a part of the prefix long. Only long parts are worth a second program on each
# multiprocessor of a Hopper, for the merge then reads twice as many parts. Measured on an H100, see
# benchmarks/results/2026-11/h100_attention.json.
LEAST_STEPS = 8


class Problem(NamedTuple):
    """Static shape of a call of tree attention.

    Attributes:
      batch: B, sequences.
      rows: T, new rows.
      heads: H, query heads.
      kv_heads: K, key/value heads.
      head_dim: D.
      dtypes: names of the dtypes of queries, keys, values and cache.
      capacity: S, rows of the cache; None without a prefix.
      value_dim: Dv, width of values where it is not D; None: D.
    """

    batch: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    dtypes: frozenset[str]
    capacity: int | None
    value_dim: int | None = None

    @classmethod
    def of(cls, q, k, v, prefix) -> Problem:
        """Describe a call with these arguments; see `pallas_kernels.reference.tree_attention`."""
        batch, rows, heads, dim = q.shape
        dtypes = frozenset(
            jnp.dtype(array.dtype).name for array in (q, k, v, *(prefix[:2] if prefix else ()))
        )
        capacity = prefix[0].shape[3] if prefix else None
        other = None if v.shape[3] == dim else v.shape[3]
        return cls(batch, rows, heads, k.shape[2], dim, dtypes, capacity, other)


class Tiles(NamedTuple):
    """How a kernel divides a problem among programs and steps.

    Attributes:
      rows: query rows per program, a power of two. A query row is a tree row and one of the query
        heads that share a kv head.
      keys: cache rows per step, a power of two.
      warps: warps per program.
      stages: number of steps with loads in flight.
      splits: programs that share a prefix. With 1, the same program also handles the tree, and
        there is nothing to merge.
      merge_rows: query rows per program of the merge.
      per_core: programs that share a multiprocessor, if all splits have long parts; with short
        ones, only every `per_core`-th split gets a part.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int
    merge_rows: int
    per_core: int = 1


class Steps(NamedTuple):
    """How attention in plain JAX reaches the live rows of the cache.

    Attributes:
      keys: cache rows per step of a loop; None without a loop.
      parts: numbers of leading cache rows to choose from, rising, the last is the capacity.
    """

    keys: int | None
    parts: tuple[int, ...]


def outside(problem: Problem) -> str | None:
    """Say why the reference serves a problem on every device; None if the others are meant for it."""
    return "rows without a cached prefix" if problem.capacity is None else None


def unsupported(problem: Problem | None, device: Device) -> str | None:
    """Say why the Triton kernel cannot serve `problem` (None: any) on `device`; None if it can."""
    if device.platform not in ("cuda", "gpu") or device.compute_capability is None:
        return f"needs an NVIDIA GPU, this is {device}"
    if device.compute_capability < (8, 0):
        return f"needs compute capability 8.0, this is {device}"
    if problem and SHORT_CACHE in problem.dtypes and device.compute_capability < LEAST_SHORT:
        return f"an fp8 cache needs compute capability 8.9, this is {device}"
    return versions.missing_triton() or unsupported_shape(problem, device)


def unsupported_shape(problem: Problem | None, device: Device) -> str | None:
    """Say why the Triton kernel cannot serve `problem` on any device; None if it can."""
    if problem is None:
        return None
    if problem.head_dim not in HEAD_DIMS:
        return f"head dimension {problem.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if problem.value_dim is not None:
        return f"values are {problem.value_dim} wide, keys {problem.head_dim}"
    dtypes = problem.dtypes - {SHORT_CACHE}
    if len(dtypes) != 1:
        return f"queries, keys and cache differ in dtype: {', '.join(sorted(dtypes))}"
    (dtype,) = dtypes
    return None if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def tiles(problem: Problem, device: Device) -> Tiles:
    """Choose block sizes of the Triton kernel for `problem` on `device`."""
    cut, (capability, cores) = _fill_once(problem, device), _device(device)
    # On Hopper two programs share a multiprocessor and hide each other's waits.
    roomy = capability == (9, 0) and problem.head_dim < 256 and "float32" not in problem.dtypes
    if roomy and problem.capacity >= 2 * LEAST_STEPS * cut.keys * cut.splits:
        return _split(problem, 2 * cores, *cut[:4])._replace(per_core=2)
    return cut


def _fill_once(problem: Problem, device: Device) -> Tiles:
    """Choose block sizes for about one program on each multiprocessor."""
    capability, cores = _device(device)
    query_rows = problem.rows * (problem.heads // problem.kv_heads)
    sequences = problem.batch * problem.kv_heads
    # Blocks of 128 rows read each key half as often as blocks of 64. Use them only if the problem
    # still fills the device.
    most = 128 if -(-query_rows // 128) * sequences >= cores else 64
    blocks = _blocks(problem, capability, min(most, max(16, _power_of_two(query_rows))))
    return _split(problem, cores, *blocks)


def packed_tiles(problem: Problem, device: Device, sequences: int) -> Tiles:
    """Choose block sizes for packed rows: as if all `sequences` had as many.

    A tile then holds the rows of a usual sequence, or the 16 query rows that a tensor core
    multiplies at once. Larger tiles would be mostly padding; with smaller ones, more programs would
    read the same prefix.

    Args:
      problem: with `batch` 1, and all packed rows.
    """
    usual = problem._replace(batch=min(sequences, problem.rows), rows=-(-problem.rows // sequences))
    found, (capability, _) = _fill_once(usual, device), _device(device)
    if _is_small(capability) and problem.head_dim < 256 and "float32" not in problem.dtypes:
        # Others spill a few bytes, because what a table says takes registers.
        found = found._replace(rows=min(found.rows, 32), warps=4, stages=3)
    # A tile holds all query heads of a row.
    group = problem.heads // problem.kv_heads
    return found._replace(rows=max(found.rows, _power_of_two(group)))


def live_steps(problem: Problem, device: Device) -> Steps:
    """Choose the steps of `pallas_kernels.attention.blocks` for `problem` on `device`."""
    capacity, on_gpu = problem.capacity, device.platform in ("cuda", "gpu")
    if on_gpu and problem.rows < LOOP_ROWS:
        # Each part is compiled. Attention costs at most four times what the live rows need.
        parts = [LEAST_PART]
        while parts[-1] < capacity:
            parts.append(4 * parts[-1])
        return Steps(None, (*parts[:-1], capacity))
    width = 4 if "float32" in problem.dtypes else 2
    row_bytes = problem.batch * problem.kv_heads * problem.head_dim * width
    most = LOOP_ROWS if problem.rows < LOOP_ROWS else 4 * LOOP_ROWS
    fits = 1 << max(0, (BLOCK_BYTES // row_bytes).bit_length() - 1)
    keys = min(most, max(most // 4, fits))
    return Steps(keys, (capacity,)) if keys < capacity else Steps(None, (capacity,))


def count_cores(device: Device) -> int:
    """Return the number of multiprocessors; those of a Hopper without a GPU."""
    return _device(device)[1]


def _device(device: Device) -> tuple[tuple[int, int], int]:
    """Return (compute capability, multiprocessors); those of a Hopper without a GPU."""
    capability = device.compute_capability or (9, 0)
    return capability, device.cores or _CORES.get(capability, 108)


def _split(problem: Problem, cores: int, rows: int, keys: int, warps: int, stages: int) -> Tiles:
    """Make `Tiles` with as many splits as keep `cores` busy."""
    query_rows = problem.rows * (problem.heads // problem.kv_heads)
    programs = -(-query_rows // rows) * problem.batch * problem.kv_heads
    # Each split writes partial sums, which the merge reads: use only as many as the device needs.
    splits = max(
        1, min(round(cores / programs), -(-problem.capacity // keys), 8192 // problem.head_dim - 1)
    )
    parts = _power_of_two(splits + 1)
    merge_rows = max(1, min(16, 4096 // (parts * problem.head_dim)))
    return Tiles(rows, keys, warps, stages, splits, merge_rows)


def _blocks(problem: Problem, capability: tuple[int, int], rows: int) -> tuple[int, int, int, int]:
    """Choose (rows, keys, warps, stages) for up to `rows` query rows, a power of two."""
    wide = problem.head_dim == 256
    if "float32" in problem.dtypes:  # no tensor cores: registers are scarce
        return (16, 16 if wide else 32, 4 if problem.head_dim == 64 else 8, 2)
    if _is_small(capability):
        # 64 rows on 4 warps spill if one program handles both the prefix and the tree.
        return (
            (min(rows, 64), 32, 8 if rows >= 64 else 4, 2)
            if not wide
            else (min(rows, 32), 32, 4, 2)
        )
    if capability >= (9, 0):
        if rows == 128 and not wide:
            return 128, 64, 8, 3
        # 64 wide rows on 4 warps spill if one program handles both the prefix and the new rows.
        return (
            (min(rows, 64), 64, 4, 3)
            if not wide
            else (min(rows, 64), 64, 8 if rows >= 64 else 4, 2)
        )
    return (min(rows, 64), 64, 4, 3) if not wide else (min(rows, 32), 32, 4, 3)


def _is_small(capability: tuple[int, int]) -> bool:
    """Whether the GPU has 99 KB of shared memory per block."""
    return capability in ((8, 6), (8, 7), (8, 9)) or capability >= (12, 0)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
