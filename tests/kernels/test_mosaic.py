"""The Mosaic GPU kernel: in its interpreter against dense attention in float64, and compiled for a
Hopper that is not there.

jax has the interpreter from 0.12 on; before, the kernel is lowered and compiled only.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tuning, versions
from pallas_kernels.aot import compile as aot
from pallas_kernels.aot import ptxas as aot_ptxas
from pallas_kernels.attention import tree_attention_mosaic
from pallas_kernels.registry import Device, Problem, explain, for_device, using


def _beside(name: str):
    """A test module of this folder, which is not on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dense = _beside("test_tree_attention")
H100 = Device("cuda", (9, 0), 132)
TREE = Problem(1, 64, 32, 8, 128, frozenset({"bfloat16"}), 4096)
MISSING = versions.missing_mosaic() or versions.missing_triton()
needs_mosaic = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
needs_interpreter = pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason=f"jax {jax.__version__} has no interpreter that runs Mosaic GPU kernels",
)
CAN, REASON = aot.available()

TOLERANCE = {"float16": 2e-3, "bfloat16": 8e-3}
# (case, lengths, firsts); the fewer the multiprocessors, the fewer the splits.
CALLS = {
    "ragged, two blocks of rows": (
        dense.Case(2, 20, 20, 5, 1, 64, 152, dtype="bfloat16", cores=16),
        [152, 64],
        [0, 0],
    ),
    "an empty sequence": (
        dense.Case(2, 3, 33, 4, 2, 64, 72, dtype="float16", cores=16),
        [0, 1],
        [0, 0],
    ),
    "window, earlier rows": (
        dense.Case(2, 3, 40, 4, 2, 64, 136, dtype="bfloat16", first=True, window=9, cores=16),
        [60, 128],
        [30, 8],
    ),
    "window that leaves a block out": (
        dense.Case(1, 3, 3, 2, 2, 64, 200, dtype="float16", window=60),
        [190],
        [0],
    ),
    "causal": (dense.Case(1, 34, 34, 2, 2, 128, 64, dtype="float16", mask=False), [50], [0]),
    "more blocks than are under way": (
        dense.Case(1, 1, 200, 1, 1, 64, 400, dtype="float16", cores=1),
        [390],
        [0],
    ),
}


# Seconds each, for the interpreter takes every access to memory one by one.
QUICK = ("ragged, two blocks of rows", "window, earlier rows")


@needs_interpreter
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CALLS],
)
def test_the_kernel_is_dense_attention(name):
    check(*CALLS[name])


@needs_interpreter
def test_blocks_are_neither_read_early_nor_overwritten_early(monkeypatch):
    """The interpreter looks for races at plain reads, not at those of matrix products."""

    def product(a, b, shape):
        return jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

    monkeypatch.setattr(tree_attention_mosaic, "_product", product)
    check(dense.Case(1, 1, 3, 1, 1, 64, 264, dtype="float16", cores=1), [260], [0])


def check(case, lengths, firsts):
    q, k, v, positions, mask, cache_k, cache_v, length, first, live = dense.draw(
        case, 7, lengths, firsts
    )
    mask = mask if case.mask else None
    want = dense.dense(case, q, k, v, positions, mask, cache_k, cache_v, length, first)
    caches = (jnp.where(live, cache, 1e4) for cache in (cache_k, cache_v))

    @jax.jit
    def attend(q, k, v, positions, mask, cache_k, cache_v, layer, length, first):
        prefix = (cache_k, cache_v, layer, length, first if case.first else None)
        with for_device(Device("cuda", (9, 0), case.cores)):
            return tree_attention_mosaic.interpreted(q, k, v, positions, mask, prefix, case.window)

    got = attend(q, k, v, positions, mask, *caches, np.int32(1), length, first)
    assert got.dtype == q.dtype
    got = np.asarray(got, np.float64)
    np.testing.assert_allclose(
        got, want, rtol=0, atol=TOLERANCE[case.dtype] * max(1.0, np.abs(want).max())
    )
    assert (got[want == 0] == 0).all(), "a row that sees nothing must give zeros"


def test_the_calls_reach_every_path():
    cut = {
        name: tuning.mosaic_tiles(_problem(case), Device("cuda", (9, 0), case.cores))
        for name, (case, *_) in CALLS.items()
    }
    ragged = cut["ragged, two blocks of rows"]
    assert ragged.splits > 1 and ragged.rows < 20 * 5
    most = cut["more blocks than are under way"]
    assert most.splits == 1 and 2 * most.stages * most.keys < 390


def _problem(case) -> Problem:
    return Problem(
        case.batch,
        case.rows,
        case.heads,
        case.kv_heads,
        case.dim,
        frozenset({case.dtype}),
        case.capacity,
    )


@needs_mosaic
def test_the_kernel_lowers_without_touching_the_cache():
    shape, count = (
        functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16),
        jax.ShapeDtypeStruct((2,), jnp.int32),
    )
    q, new, cache = shape((2, 16, 10, 64)), shape((2, 16, 2, 64)), shape((3, 2, 2, 4096, 64))
    positions, mask = (
        jax.ShapeDtypeStruct((2, 16), jnp.int32),
        jax.ShapeDtypeStruct((2, 16, 1), jnp.uint32),
    )

    def attend(q, k, v, positions, mask, cache_k, cache_v, length, first):
        prefix = (cache_k, cache_v, 1, length, first)
        choice = explain("tree_attention", Problem.of(q, k, v, prefix))
        assert (
            choice.function is tree_attention_mosaic.tree_attention
            and choice.reason == "named by using"
        )
        return choice.function(q, k, v, positions, mask, prefix, 100)

    gpu = versions.abstract_gpu_mesh("NVIDIA H100 80GB HBM3", 132)
    with for_device(H100), using("mosaic"), jax.sharding.use_abstract_mesh(gpu):
        traced = jax.jit(attend).trace(q, new, new, positions, mask, cache, cache, count, count)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 1, "the parts"
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == 1, "their merge"
    made = [
        line
        for line in text.splitlines()
        if "-> tensor<12x4096x64xbf16>" in line and "func" not in line
    ]
    assert len(made) == 2 and all("stablehlo.reshape" in line for line in made), made


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of the compiler, and of ptxas, for calls of all widths and head dimensions."""
    dump = tmp_path_factory.mktemp("mosaic")
    base = {"heads": 32, "kv_heads": 8, "capacity": 4096}
    calls = [
        base | {"rows": rows, "head_dim": dim} for dim in (64, 128) for rows in (1, 8, 64, 256)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOSAIC_GPU_DUMP_TO", str(dump))
        yield (
            aot.compile_report(
                "pallas_kernels.aot.programs:make_attention_program",
                {"calls": calls, "implementation": "mosaic"},
                "h100",
                large=4 * 2**20,
                spills=False,
            ),
            aot_ptxas.parse_ptxas(
                "\n".join(path.read_text(encoding="utf-8") for path in dump.glob("*.ptxas"))
            ),
        )
    for path in dump.iterdir():  # hundreds of MB
        path.unlink()


@needs_mosaic
@pytest.mark.skipif(not CAN, reason=REASON)
def test_the_kernel_compiles_for_a_hopper_without_spilling(report):
    compiled, registers = report
    assert compiled["compiles"], compiled["error"]
    # The caches have 32 MiB (64 at a head dimension of 128).
    assert not [each for each in compiled["large"] if each["moves"]]
    assert compiled["memory"]["temporary"] <= 16 * 2**20
    # Calls of 1 and of 8 rows are the same kernel: 8 rows and their 4 heads fill half a block.
    assert registers["checked"] == 6 and not registers["spilling"], registers


@pytest.mark.parametrize(
    ("device", "changed", "reason"),
    [
        (Device("cpu"), {}, "compute capability 9.0 .Hopper., this is cpu"),
        (Device("cuda", (8, 0), 108), {}, "this is cuda 8.0"),
        (Device("cuda", (10, 0), 148), {}, "this is cuda 10.0"),
        (H100, {"head_dim": 256}, "head dimension 256 is not one of 64, 128"),
        (H100, {"dtypes": frozenset({"float32"})}, "dtype float32 is not one of bfloat16, float16"),
        (
            H100,
            {"dtypes": frozenset({"bfloat16", "float16"})},
            "differ in dtype: bfloat16, float16",
        ),
        (H100, {"capacity": 100}, "cache capacity 100 is not a multiple of 8"),
    ],
)
def test_what_it_cannot_run_is_refused(monkeypatch, device, changed, reason):
    monkeypatch.setattr(versions, "missing_mosaic", lambda: None)
    with using("mosaic"), pytest.raises(ValueError, match=reason) as raised:
        explain("tree_attention", TREE._replace(**changed), device)
    assert "using='mosaic' cannot run tree_attention here" in str(raised.value) and "\n" not in str(
        raised.value
    )


def test_an_old_jax_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 9, 2))
    monkeypatch.setenv("JAXSPEC_KERNELS", "mosaic")
    with pytest.raises(
        ValueError, match="JAXSPEC_KERNELS='mosaic' cannot run .*: jax .* is too old for Mosaic GPU"
    ):
        explain("tree_attention", TREE, H100)


def test_rows_without_a_cache_get_the_reference_even_so():
    with using("mosaic"):
        assert explain("tree_attention", TREE._replace(capacity=None), H100).name == "reference"


def test_it_runs_only_when_named():
    assert explain("tree_attention", TREE, H100).name == "triton"
