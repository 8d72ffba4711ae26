"""Weights in few bits against the code of those who publish them (needs PyTorch).

compressed-tensors packs, and says what the result stands for; transformers decodes FP8 and MXFP4,
and AutoAWQ its own words. To repeat it: `pip install --no-deps compressed-tensors autoawq`.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import packers
import pytest
from safetensors.numpy import save_file

from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.quantised.mxfp4 import decode_mxfp4

pytestmark = pytest.mark.torch
SCHEMES = {
    "pack 4": dict(num_bits=4, strategy="group", group_size=16),
    "pack 4 zeros": dict(num_bits=4, strategy="group", group_size=16, symmetric=False),
    "pack 8": dict(num_bits=8, strategy="channel"),
    "pack 3": dict(num_bits=3, strategy="group", group_size=16),
    "int8": dict(num_bits=8, strategy="channel"),
    "int8 zeros": dict(num_bits=8, strategy="channel", symmetric=False),
    "fp8": dict(num_bits=8, type="float", strategy="channel"),
    "fp8 tensor": dict(num_bits=8, type="float", strategy="tensor"),
    "fp8 blocks": dict(num_bits=8, type="float", strategy="block", block_structure=[16, 24]),
}


def weights(shape=(32, 64)) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def load_file(folder, tensors, settings):
    """Write PyTorch's tensors of one module, and read its weight."""
    torch_files = pytest.importorskip("safetensors.torch")
    named = {f"x.{name}": one.contiguous() for name, one in tensors.items()}
    torch_files.save_file(named, folder / "model.safetensors")
    return open_full(WeightFiles(folder), {"quantization_config": settings})["x.weight"]


def reduce_blocks(weight, args, reduce):
    """Reduce each part of a weight [32, 64] that shares a scale."""
    if args.strategy == "tensor":
        return reduce(weight).reshape(1)
    height, width = {"channel": (1, 64), "group": (1, 16), "block": (16, 24)}[args.strategy]
    rows = [
        [reduce(part) for part in stripe.split(width, dim=1)] for stripe in weight.split(height)
    ]
    return weight.new_tensor([[float(one) for one in row] for row in rows])


@pytest.mark.parametrize("case", SCHEMES)
def test_compressed_tensors_packs_what_is_read(case, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**SCHEMES[case])
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.from_numpy(weights())
    low, high = (reduce_blocks(weight, args, find) for find in (torch.min, torch.max))
    scale, zero = calculate_qparams(low, high, args)
    name = "pack-quantized" if case.startswith("pack") else "naive-quantized"
    compressor = BaseCompressor.get_value_from_registry(name)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(stored, scheme)["weight"]
    settings = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": SCHEMES[case]}},
    }
    found = load_file(tmp_path, stored, settings)
    np.testing.assert_array_equal(found, expected.float().numpy())


def test_transformers_decodes_mxfp4_alike():
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (3, 10, 4, 16)).astype(np.uint8)
    scales = generator.integers(60, 190, (3, 10, 4)).astype(np.uint8)
    stored = torch.from_numpy(blocks), torch.from_numpy(scales)
    theirs = mxfp4.convert_moe_packed_tensors(*stored, dtype=torch.float32)
    ours = decode_mxfp4(blocks, scales).swapaxes(1, 2)
    np.testing.assert_array_equal(ours, theirs.numpy())


def test_transformers_decodes_fp8_alike(tmp_path):
    torch = pytest.importorskip("torch")
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    stored, _ = packers.fp8_blocks(weights(), (16, 16))
    save_file({f"x.{name}": one for name, one in stored.items()}, tmp_path / "model.safetensors")
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    read = open_full(WeightFiles(tmp_path), {"quantization_config": settings})
    values = torch.from_numpy(stored["weight"].view(np.uint8)).view(torch.float8_e4m3fn)
    scale = torch.from_numpy(stored["weight_scale_inv"].astype(np.float32))
    theirs = fp8.Fp8Dequantize(None)._dequantize_one(values, scale, torch.float32)
    np.testing.assert_array_equal(read["x.weight"], theirs.numpy())


def load_module(package: str, file: str):
    """Import a file of a package by itself, since the package wants a GPU."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not here: pip install --no-deps autoawq auto-gptq")
    path = f"{found.submodule_search_locations[0]}/{file}"
    spec = importlib.util.spec_from_file_location(package + "_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_words(torch, *shape):
    whole = torch.iinfo(torch.int32)
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(whole.min, whole.max, shape, generator=generator, dtype=torch.int32)


def test_autoawq_decodes_alike(tmp_path):
    torch = pytest.importorskip("torch")
    awq = load_module("awq", "utils/packing_utils.py")
    words, zeros = random_words(torch, 64, 4), random_words(torch, 4, 4)
    scales = torch.rand((4, 32), generator=torch.Generator().manual_seed(0))
    theirs = awq.dequantize_gemm(words, zeros, scales, 4, 16).T
    stored = {"qweight": words, "qzeros": zeros, "scales": scales}
    ours = load_file(tmp_path, stored, {"quant_method": "awq", "bits": 4})
    np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_autogptq_decodes_alike(bits, tmp_path):
    """Its product with the identity, of random words and groups in any order.

    The largest zero point is left out: there its own layers differ, see `jaxspec.io.quantised.gptq`.
    """
    torch = pytest.importorskip("torch")
    gptq = load_module("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py")
    layer = gptq.QuantLinear(bits, 16, 64, 32, False, weight_dtype=torch.float32)
    generator = np.random.default_rng(0)
    order = torch.from_numpy(generator.permutation(np.arange(64) // 16))
    zeros = generator.integers(0, 2**bits - 1, (4, 32))
    stored = {
        "qweight": random_words(torch, 2 * bits, 32),
        "qzeros": torch.from_numpy(np.stack([packers.stream(row, bits) for row in zeros])),
        "scales": torch.rand((4, 32), generator=torch.Generator().manual_seed(0)),
        "g_idx": order.to(torch.int32),
    }
    layer.load_state_dict(stored)
    theirs = layer(torch.eye(64)).T
    settings = {"quant_method": "gptq", "bits": bits, "desc_act": True}
    np.testing.assert_array_equal(load_file(tmp_path, stored, settings), theirs.numpy())
