"""Weights in few bits, read as numbers: every format against a packer that shares no code with it."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import packers
import pytest
from safetensors.numpy import save_file

from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.quantised.bits import unpack
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.quantised.held import HeldTensors, scale_name
from jaxspec.io.quantised.mxfp4 import decode_ggml_mxfp4, decode_mxfp4
from jaxspec.io.quantised.registry import find_format
from jaxspec.io.quantised.tensors import QuantisedTensors
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf

STEM = "model.layers.0.mlp.up_proj"
NAME = f"{STEM}.weight"
ORDER = np.random.default_rng(1).permutation(np.arange(64) // 16)


def one_group(num_bits=4, targets=("Linear",), **weights) -> dict:
    """config.json's entry of compressed-tensors with one group."""
    group = {"targets": list(targets), "weights": {"num_bits": num_bits} | weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


FP8, GPTQ = {"quant_method": "fp8"}, {"quant_method": "gptq", "bits": 4}
BLOCKS = FP8 | {"weight_block_size": [16, 24]}
CASES = {
    "fp8 blocks": (packers.fp8_blocks, BLOCKS),
    "fp8 whole blocks": (functools.partial(packers.fp8_blocks, block=(8, 16)), BLOCKS | {"weight_block_size": [8, 16]}),
    "fp8 outputs": (functools.partial(packers.one_byte, kind="fp8"), FP8),
    "fp8 tensor": (functools.partial(packers.one_byte, kind="fp8", whole=True), FP8),
    "fbgemm": (functools.partial(packers.one_byte, kind="fp8"), {"quant_method": "fbgemm_fp8"}),
    "awq": (packers.awq, {"quant_method": "awq", "bits": 4, "version": "GEMM"}),
    "gptq 2": (functools.partial(packers.gptq, bits=2), GPTQ),
    "gptq 3": (functools.partial(packers.gptq, bits=3, symmetric=False), GPTQ),
    "gptq 4": (packers.gptq, GPTQ),
    "gptq 8": (functools.partial(packers.gptq, bits=8, symmetric=False), GPTQ),
    "gptq without g_idx": (functools.partial(packers.gptq, indexed=False), GPTQ),
    "gptq in order": (functools.partial(packers.gptq, order=ORDER, symmetric=False), GPTQ | {"desc_act": True}),
    "gptq v2": (functools.partial(packers.gptq, offset=0, symmetric=False), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "int8": (functools.partial(packers.one_byte, kind="int8"), one_group(8)),
    "int8 tensor": (functools.partial(packers.one_byte, kind="int8", whole=True), one_group(8)),
    "int8 zeros": (functools.partial(packers.one_byte, kind="int8", zeros=True), one_group(8)),
    "float8": (functools.partial(packers.one_byte, kind="fp8"), one_group(8)),
    "pack 4": (functools.partial(packers.packed, bits=4, size=16), one_group(4, group_size=16)),
    "pack 4 zeros": (functools.partial(packers.packed, bits=4, size=16, symmetric=False), one_group(4, group_size=16)),
    "pack 3": (functools.partial(packers.packed, bits=3, size=16), one_group(3, group_size=16)),
    "pack 8": (functools.partial(packers.packed, bits=8, size=None), one_group(8, group_size=None)),
    "pack 8 zeros": (functools.partial(packers.packed, bits=8, size=None, symmetric=False), one_group(8)),
}  # fmt: skip
KEPT = {"fp8 outputs", "fp8 tensor", "fbgemm", "int8", "int8 tensor", "float8", "pack 8"}


def weights(shape=(32, 64)) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def named(modules: dict[str, dict]) -> dict[str, np.ndarray]:
    """Name the tensors of modules as files do."""
    return {
        f"{stem}.{suffix}": np.ascontiguousarray(one)
        for stem, stored in modules.items()
        for suffix, one in stored.items()
    }


def save(folder, stored: dict, settings: dict) -> QuantisedTensors:
    save_file(
        named({STEM: stored}) | {"norm.weight": np.ones(3, np.float32)},
        folder / "model.safetensors",
    )
    return open_full(WeightFiles(folder), {"quantization_config": settings})


def room(rows: int, columns: int = 64) -> np.ndarray:
    return np.empty(4 * rows * columns, np.uint8)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_format_says(case, tmp_path):
    pack, settings = CASES[case]
    stored, full = pack(weights())
    read = save(tmp_path, stored, settings)
    assert set(read) == {NAME, "norm.weight"}
    assert read.shape(NAME) == full.shape and read.dtype(NAME) == "F32"
    np.testing.assert_array_equal(read[NAME], full)
    np.testing.assert_array_equal(read.row_reader(NAME)(5, 22, room(17)), full[5:22])
    part = read.block_reader(NAME)(5, 22, slice(3, 40), room(17, 37))
    np.testing.assert_array_equal(part, full[5:22, 3:40])


@pytest.mark.parametrize("case", CASES)
def test_one_byte_per_output_is_read_as_it_is(case, tmp_path):
    pack, settings = CASES[case]
    stored, full = pack(weights())
    read = save(tmp_path, stored, settings)
    assert (read.kind(NAME) is not None) == (case in KEPT)
    if case not in KEPT:
        return
    view = HeldTensors(read, [NAME])
    values = view.row_reader(NAME)(4, 9, room(5))
    scale = view[scale_name(NAME)]
    assert values.dtype == {"int8": np.int8, "fp8": packers.FP8}[read.kind(NAME)]
    assert scale.dtype == np.float32 and view.shape(scale_name(NAME)) == scale.shape == (32,)
    np.testing.assert_array_equal(values.astype(np.float32) * scale[4:9, None], full[4:9])
    if "weight" in stored:
        np.testing.assert_array_equal(values.view(np.uint8), stored["weight"][4:9].view(np.uint8))
    assert set(view) == {NAME, "norm.weight", scale_name(NAME)} and scale_name(NAME) not in read


def test_zeros_of_a_symmetric_weight_change_nothing(tmp_path):
    """Older writers of compressed-tensors stored them."""
    stored, full = packers.one_byte(weights(), "int8")
    stored["weight_zero_point"] = np.zeros((32, 1), np.int8)
    read = save(tmp_path, stored, one_group(8))
    assert read.kind(NAME) == "int8"
    np.testing.assert_array_equal(read[NAME], full)


def test_unpacked_zero_points_of_packed_weights(tmp_path):
    """compressed-tensors before 0.7 stored them as int8."""
    stored, full = packers.packed(weights(), 4, 16, symmetric=False)
    _, zero, _, _ = packers.group_codes(weights(), 4, 16, False)
    stored["weight_zero_point"] = (zero.T - 8).astype(np.int8)
    read = save(tmp_path, stored, one_group(4, group_size=16))
    np.testing.assert_array_equal(read[NAME], full)


def test_groups_of_inputs_in_any_order(tmp_path):
    """compressed-tensors' `actorder`, whose order is that of GPTQ's `desc_act`."""
    codes, _, scale, full = packers.group_codes(weights(), 4, 16, True, ORDER)
    stored = {
        "weight_packed": np.stack([packers.stream(row, 4) for row in codes]),
        "weight_scale": scale.T,
        "weight_shape": np.array([32, 64]),
        "weight_g_idx": ORDER.astype(np.int32),
    }
    read = save(tmp_path, stored, one_group(4, group_size=16, actorder="group"))
    np.testing.assert_array_equal(read[NAME], full)
    stored["weight_g_idx"] = np.full(64, -1, np.int32)  # there is none
    plain = packers.group_codes(weights(), 4, 16, True)
    stored |= {"weight_packed": np.stack([packers.stream(row, 4) for row in plain[0]])}
    read = save(tmp_path, stored | {"weight_scale": plain[2].T}, one_group(4, group_size=16))
    np.testing.assert_array_equal(read[NAME], plain[3])


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4", "mxfp8"])
def test_fp4_and_mxfp8_of_compressed_tensors(kind, tmp_path):
    if kind == "mxfp8":
        values = weights().astype(packers.FP8)
        power = np.random.default_rng(3).integers(120, 132, (32, 2)).astype(np.uint8)
        stored = {"weight": values, "weight_scale": power}
        factor = packers.spread(2.0 ** (power.astype(int) - 127), (1, 32), (32, 64))
        full, settings = values.astype(np.float32) * factor, one_group(8, group_size=32)
    elif kind == "mxfp4":
        blocks, scales, full = packers.mxfp4(weights())
        stored = {"weight_packed": blocks.reshape(32, 32), "weight_scale": scales}
        settings = one_group(4, group_size=32, type="float")
    else:
        codes = np.random.default_rng(3).integers(0, 16, (32, 64))
        scale = np.random.default_rng(4).uniform(1, 400, (32, 4)).astype(packers.FP8)
        stored = {
            "weight_packed": (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8),
            "weight_scale": scale,
            "weight_global_scale": np.array([96.0], np.float32),
        }
        factor = (scale.astype(np.float32) / np.float32(96))[:, np.arange(64) // 16]
        full, settings = (
            np.array(packers.FP4, np.float32)[codes] * factor,
            one_group(4, group_size=16),
        )
    np.testing.assert_array_equal(save(tmp_path, stored, settings)[NAME], full)


@pytest.mark.parametrize("bits", range(1, 9))
def test_unpacked_integers(bits):
    numbers = np.random.default_rng(bits).integers(0, 2**bits, (3, 45))
    words = np.stack([packers.stream(row, bits) for row in numbers])
    np.testing.assert_array_equal(unpack(words, bits, 45), numbers)


def test_a_zero_point_of_zero_is_stored_as_the_largest_code(tmp_path):
    """GPTQ's first format stores one less, modulo the number of codes."""
    stored, full = packers.gptq(np.abs(weights()), symmetric=False)
    assert (stored["qzeros"].view(np.uint8) == 0xFF).all()
    np.testing.assert_array_equal(save(tmp_path, stored, GPTQ)[NAME], full)


def test_mxfp4_of_every_byte():
    """256 bytes of codes by 256 of scales, against the definition; ggml's blocks too."""
    codes = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    scales = np.arange(256, dtype=np.uint8)[:, None]
    blocks = np.broadcast_to(codes, (256, 16, 16))
    found = decode_mxfp4(blocks, np.broadcast_to(scales, (256, 16)))
    assert found.dtype == np.float32 and found.shape == (256, 512)
    numbers = np.array(packers.FP4)
    flat = blocks.reshape(256, 256)
    pairs = np.stack([numbers[flat & 15], numbers[flat >> 4]], axis=-1).reshape(256, 512)
    with np.errstate(over="ignore"):
        expected = (pairs * 2.0 ** (scales.astype(int) - 127)).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(pairs))
    stored = np.concatenate([np.broadcast_to(scales[..., None], (256, 16, 1)), blocks], axis=-1)
    ordered = pairs.reshape(256, 16, 16, 2).swapaxes(-1, -2).reshape(256, 512)
    with np.errstate(over="ignore"):
        expected = (ordered * 2.0 ** (scales.astype(int) - 127)).astype(np.float32)
    np.testing.assert_array_equal(decode_ggml_mxfp4(stored.reshape(256, -1)), expected)


def test_stacks_of_experts_in_mxfp4(tmp_path):
    """gpt-oss's layout is read under the name and in the axes that transformers saves."""
    blocks, scales, full = packers.mxfp4(weights((3, 10, 64)))
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{stem}_blocks": blocks, f"{stem}_scales": scales, f"{stem}_bias": np.ones((3, 10))}
    tensors[f"{stem}_bias"] = tensors[f"{stem}_bias"].astype(ml_dtypes.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    hf = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    read = open_full(WeightFiles(tmp_path), hf)
    assert set(read) == {stem, f"{stem}_bias"} and read.shape(stem) == (3, 64, 10)
    np.testing.assert_array_equal(read[stem], full.swapaxes(1, 2))
    one = read.row_reader(stem)(1, 2, room(10))
    np.testing.assert_array_equal(one, full.swapaxes(1, 2)[1:2])
    leaf = Leaf(("gate_up",), ((stem,),), ((3, 64, 10),))
    tree = read_tree([leaf], read, "bfloat16", lambda name: name.endswith("_bias"))
    np.testing.assert_array_equal(tree["params"]["gate_up"], full.swapaxes(1, 2))


GROUPS = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head", "re:.*gate$"],
    "config_groups": {
        "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16}},
        "b": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "group_size": 32}},
        "c": {"targets": ["layers.0.down_proj"], "weights": {"num_bits": 4, "group_size": 32}},
    },
}


def test_the_most_special_group_counts(tmp_path):
    made = {
        "layers.0.up_proj": packers.packed(weights(), 4, 16),
        "layers.1.down_proj": packers.packed(weights(), 8, 32),
        "layers.0.down_proj": packers.packed(weights(), 4, 32),
    }
    tensors = named({stem: one for stem, (one, _) in made.items()})
    tensors |= {"lm_head.weight": weights(), "layers.0.gate.weight": weights()}
    save_file(tensors, tmp_path / "model.safetensors")
    read = open_full(WeightFiles(tmp_path), {"compression_config": GROUPS})
    for stem, (_, full) in made.items():
        np.testing.assert_array_equal(read[f"{stem}.weight"], full)
    np.testing.assert_array_equal(read["lm_head.weight"], weights())


@pytest.mark.parametrize(
    ("stem", "message"), [("lm_head", "ignores it"), ("layers.0.gate", "ignores it")]
)
def test_what_is_ignored_must_be_full(stem, message, tmp_path):
    stored, _ = packers.packed(weights(), 4, 16)
    save_file(named({stem: stored}), tmp_path / "model.safetensors")
    read = open_full(WeightFiles(tmp_path), {"quantization_config": GROUPS})
    with pytest.raises(ValueError, match=f"{stem}: .*{message}"):
        read.shape(f"{stem}.weight")


def drop(stored: dict, *names: str) -> dict:
    return {name: one for name, one in stored.items() if name not in names}


def packed() -> dict:
    return packers.packed(weights(), 4, 16)[0]


def gptq() -> dict:
    return packers.gptq(weights())[0]


def awq() -> dict:
    return packers.awq(weights())[0]


AWQ, BY_16 = {"quant_method": "awq", "bits": 4}, one_group(4, group_size=16)
LARGE = FP8 | {"weight_block_size": [128, 128]}
TENSORS = {
    "no zeros": (lambda: drop(awq(), "qzeros"), AWQ, r"up_proj\.qzeros is missing"),
    "no shape": (lambda: drop(packed(), "weight_shape"), BY_16, "weight_shape is missing"),
    "other bits": (
        packed,
        one_group(8, group_size=16),
        r"weight_packed is I32 \[32, 8\], expected I32 \[32, 16\]",
    ),
    "other group": (
        packed,
        one_group(4, group_size=32),
        r"scales \[32, 4\] do not fit the weight \[32, 64\]",
    ),
    "other block": (
        lambda: packers.fp8_blocks(weights())[0],
        LARGE,
        r"scales \[2, 3\] do not fit .* block of 128 by 128",
    ),
    "no group": (packed, one_group(4, ["re:.*down"]), "no group of quantization_config covers it"),
    "no order": (lambda: drop(gptq(), "g_idx"), GPTQ | {"desc_act": True}, "g_idx is missing"),
    "wrong order": (
        lambda: gptq() | {"g_idx": np.full(64, 9, np.int32)},
        GPTQ,
        "g_idx holds 9 to 9, of 4 groups",
    ),
    "wrong scales": (
        lambda: awq() | {"scales": np.ones((4, 16), np.float16)},
        AWQ,
        r"scales is F16 \[4, 16\], expected F16 or BF16 or F32 \[4, 32\]",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_named(case, tmp_path):
    stored, settings, message = TENSORS[case]
    read = save(tmp_path, stored(), settings)
    with pytest.raises(ValueError, match=message) as caught:
        read.shape(NAME)
        read[NAME]
    assert STEM in str(caught.value) and "\n" not in str(caught.value)


def test_one_byte_without_scales_is_refused(tmp_path):
    stored = drop(packers.fp8_blocks(weights())[0], "weight_scale_inv")
    with pytest.raises(
        ValueError, match=r"up_proj.weight is stored as F8_E4M3, without .*scale_inv"
    ):
        save(tmp_path, stored, BLOCKS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "load the model that it was made of"),
        ({"quant_method": "hqq"}, "quantised by hqq are not read .*with quantize='int8'"),
        ({"bits": 4}, "quantised by unknown are not read"),
        ({"quant_method": "awq", "version": "gemv"}, "layout 'gemv' is not read: .* 'gemm'"),
        ({"quant_method": "awq", "bits": 8}, "AWQ with 8 bits is not read"),
        (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ's layout 'marlin' is not read"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size must be two integers above 0"),
        (one_group(4) | {"format": "marlin-24"}, "format 'marlin-24' is not read .*full weights"),
        (one_group(9), "config_groups must be groups with targets and weights.num_bits"),
    ],
)  # fmt: skip
def test_other_formats_are_refused_with_a_hint(settings, message):
    with pytest.raises(ValueError, match=message):
        find_format({"quantization_config": settings})


def test_full_weights_have_no_format():
    assert find_format({}) is None and find_format({"quantization_config": {}}) is None
