"""Models that compressed-tensors writes, loaded as they are (needs PyTorch and compressed-tensors).

To repeat it: `pip install --no-deps compressed-tensors`, and run `pytest -m torch` on this file.
"""

from __future__ import annotations

import numpy as np
import packers
import pytest

import jaxspec
from jaxspec.targets.layouts.quant import kind_of
from jaxspec.targets.weights import to_hf

GROUPED = dict(num_bits=4, strategy="group", group_size=8)
MLP, ATTENTION = "re:.*(gate|up|down)_proj$", "re:.*self_attn.*"
# Groups of modules: a preset's name or how weights are quantised; and what is kept in one byte.
CASES = {
    "four bits": ({"Linear": GROUPED}, None),
    "zero points": ({"Linear": GROUPED | {"symmetric": False}}, None),
    "int8": ({"Linear": "W8A8"}, "int8"),
    "fp8": ({"Linear": "FP8_DYNAMIC"}, "fp8"),
    "mixed": ({MLP: GROUPED, ATTENTION: "FP8_DYNAMIC"}, "fp8"),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_every_weight_is_what_its_writer_decompresses(case, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors import quantization as ct
    from compressed_tensors.compressors import ModelCompressor
    from safetensors.torch import save_file

    groups, kind = CASES[case]
    schemes = {
        f"group_{i}": ct.preset_name_to_scheme(how, [target])
        if isinstance(how, str)
        else ct.QuantizationScheme(targets=[target], weights=ct.QuantizationArgs(**how))
        for i, (target, how) in enumerate(groups.items())
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packers.MODELS / "qwen3", dtype=torch.float32
    )
    settings = ct.QuantizationConfig(config_groups=schemes, ignore=["lm_head"])
    ct.apply_quantization_config(model, settings)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            calibrate(module, ct)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.config.save_pretrained(tmp_path)
    stored = {name: one.contiguous() for name, one in model.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    compressor.update_config(str(tmp_path))
    compressor.decompress_model(model)
    full = {name: one.float().numpy() for name, one in model.state_dict().items()}

    params = jaxspec.load(tmp_path, drafter={}, dtype="float32", quantize="none")
    for name, found in to_hf(params.target, params.spec.target).items():
        np.testing.assert_array_equal(found, full[name])
    assert kind_of(jaxspec.load(tmp_path, drafter={}, dtype="float32").target) == kind
    if GROUPED in groups.values():
        four = jaxspec.load(tmp_path, drafter={}, dtype="float32", quantize="int4")
        assert kind_of(four.target) == "int4"


def calibrate(module, ct) -> None:
    """Set scales and zero points by the least and largest weight of each group or output."""
    from compressed_tensors.quantization.utils import calculate_qparams

    args, weight = module.quantization_scheme.weights, module.weight.data
    size = args.group_size or weight.shape[1]
    low, high = weight.reshape(len(weight), -1, size).aminmax(dim=-1)
    scale, zero = calculate_qparams(low, high, args)
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)
    module.quantization_status = ct.QuantizationStatus.FROZEN
