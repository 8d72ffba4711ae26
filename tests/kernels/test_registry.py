"""Which implementation runs where, and that naming one that cannot run is an error."""

import jax
import jax.numpy as jnp
import pytest

from jaxspec.targets.attention import attend
from pallas_kernels import tuning
from pallas_kernels.registry import (
    Device,
    Problem,
    describe_device,
    explain,
    for_device,
    names,
    resolve_kernel,
    using,
)
from pallas_kernels.versions import default_device

CPU, T4 = Device("cpu"), Device("cuda", (7, 5), 40)
A100, L4, H100 = (
    Device("cuda", (8, 0), 108),
    Device("cuda", (8, 9), 58),
    Device("cuda", (9, 0), 132),
)
B200, RTX5090 = Device("cuda", (10, 0), 148), Device("cuda", (12, 0), 170)
TREE = Problem(1, 64, 32, 8, 128, frozenset({"bfloat16"}), 4096)


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv("JAXSPEC_KERNELS", raising=False)


@pytest.mark.parametrize("device", [A100, L4, H100, B200, RTX5090])
def test_kernels_run_from_ampere_on(device):
    choice = explain("tree_attention", TREE, device)
    assert choice.name == "triton" and str(device) in choice.reason
    with for_device(device):
        assert resolve_kernel("tree_attention", TREE) is choice.function
        assert explain("tree_attention").name == "triton"  # what doctor asks


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (CPU, "NVIDIA"),
        (T4, "compute capability 8.0"),
        (Device("rocm"), "NVIDIA"),
        (Device("cuda"), "NVIDIA"),
    ],
)
def test_other_devices_get_attention_in_blocks(device, reason):
    for problem in (TREE, None):
        choice = explain("tree_attention", problem, device)
        assert (
            choice.name == "blocks"
            and choice.function.__module__ == "pallas_kernels.attention.blocks"
        )
        assert reason in choice.reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"head_dim": 80}, "head dimension 80"),
        ({"dtypes": frozenset({"float64"})}, "dtype float64"),
        ({"dtypes": frozenset({"bfloat16", "float32"})}, "bfloat16, float32"),
    ],
)
def test_unsupported_shapes_get_attention_in_blocks_unless_a_kernel_is_named(changed, reason):
    problem = TREE._replace(**changed)
    choice = explain("tree_attention", problem, H100)
    assert choice.name == "blocks" and reason in choice.reason
    with using("triton"), pytest.raises(ValueError, match=reason):
        explain("tree_attention", problem, H100)


def test_chunks_of_prompts_get_the_kernel():
    assert explain("tree_attention", TREE._replace(rows=512), H100).name == "triton"


def test_rows_without_a_cache_get_the_reference_whatever_is_named():
    with using("triton"):
        choice = explain("tree_attention", TREE._replace(capacity=None), H100)
    assert choice.name == "reference" and "not meant for" in choice.reason


def test_a_kernel_can_be_named(monkeypatch):
    monkeypatch.setenv("JAXSPEC_KERNELS", "reference")
    assert explain("tree_attention", TREE, H100)[::2] == ("reference", "named by JAXSPEC_KERNELS")
    with using("triton"):  # nearer than the environment
        assert explain("tree_attention", TREE, H100)[::2] == ("triton", "named by using")
    monkeypatch.setenv("JAXSPEC_KERNELS", "interpret")
    assert explain("tree_attention", TREE, CPU).name == "interpret"


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("cudnn", H100, "choose one of triton"),
        ("triton", CPU, "this is cpu"),
        ("triton", T4, "this is cuda 7.5"),
    ],
)
def test_a_named_kernel_that_cannot_run_is_an_error(monkeypatch, name, device, reason):
    monkeypatch.setenv("JAXSPEC_KERNELS", name)
    with pytest.raises(ValueError, match=reason) as raised, for_device(device):
        resolve_kernel("tree_attention", TREE)
    assert "JAXSPEC_KERNELS" in str(raised.value) and "\n" not in str(raised.value)


def test_what_was_traced_for_another_device_is_not_used_again():
    rows, cache = jnp.zeros((1, 4, 2, 64)), jnp.zeros((1, 1, 2, 256, 64))
    length = jnp.zeros(1, jnp.int32)

    @jax.jit
    def call(rows):
        return attend(
            rows, rows, rows, jnp.zeros((1, 4), jnp.int32), prefix=(cache, cache, 0, length, None)
        )

    def kernels():
        return str(jax.make_jaxpr(call)(rows)).count("pallas_call")

    assert kernels() == 0
    with for_device(H100):
        assert kernels() == 2
        with using("reference"):
            assert kernels() == 0
    assert kernels() == 0


def test_the_device_here_is_described():
    device = describe_device(default_device())
    assert device.platform == default_device().platform and (
        device.compute_capability is None or device.platform == "cuda"
    )
    assert names() == ["triton", "interpret", "blocks", "reference"]


def test_splits_keep_the_device_busy_and_no_more():
    def splits(rows, device, **changed):
        return tuning.tiles(TREE._replace(rows=rows, **changed), device).splits

    # Fewer query rows or sequences leave more multiprocessors for parts of the prefix.
    assert splits(1, H100) > splits(64, H100) > splits(256, H100) >= 1
    assert splits(64, H100, batch=16) == 1
    # A part needs a block of its own, and the merge holds all parts at once.
    assert splits(1, H100, capacity=128) == 2
    for dim in tuning.HEAD_DIMS:
        tiles = tuning.tiles(Problem(1, 1, 1, 1, dim, frozenset({"bfloat16"}), 1 << 20), H100)
        assert (tiles.splits + 1) * dim * tiles.merge_rows <= 8192
    # Dots need 16 rows, and blocks are powers of two whatever the heads (5 share a kv head in
    # qwen3-14b).
    for rows in (1, 8, 64, 256):
        tiles = tuning.tiles(TREE._replace(rows=rows, heads=40), L4)
        assert tiles.rows >= 16 and tiles.rows & (tiles.rows - 1) == 0


def test_steps_of_plain_attention_suit_the_device():
    wide = Problem(64, 1, 9, 3, 64, frozenset({"float32"}), 4096)
    alone, chunk = wide._replace(batch=1), wide._replace(batch=1, rows=512)
    keys = [tuning.live_steps(problem, CPU).keys for problem in (wide, alone, chunk)]
    # Less of a large batch fits a core's cache. The rows of a prompt repay larger blocks.
    assert keys[0] < keys[1] < keys[2] < 4096 and all(number & (number - 1) == 0 for number in keys)
    assert tuning.live_steps(wide._replace(capacity=keys[0]), CPU).keys is None, "one step: no loop"
    # The host drives a GPU's loops, so rounds choose among compiled parts instead.
    assert tuning.live_steps(alone, T4) == tuning.Steps(None, (512, 2048, 4096))
    assert tuning.live_steps(chunk, T4).keys == keys[2]
