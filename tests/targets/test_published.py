"""Models in few bits, loaded whole: fused and stacked weights, and what stays in one byte."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import packers
import pytest
from flax.traverse_util import flatten_dict
from sharded_toys import make_params
from slow_cases import mark_thorough
from virtual_devices import run_on_devices

import jaxspec
from jaxspec.io.files.json_files import read_json
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.layouts.four_bits import unpack
from jaxspec.targets.layouts.quant import COLLECTION, FOUR_BITS, contracted_axis, kind_of
from jaxspec.targets.transformer import Transformer
from jaxspec.targets.weights import from_hf
from jaxspec.zoo import compare_files
from jaxspec.zoo.inspect import describe_checkpoint
from pallas_kernels.registry import using

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [12, 10], "activation_scheme": "dynamic"}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 8}}
    },
}
EIGHT = PACKED | {
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
}
PACKERS = {
    "awq": (lambda module, weight: packers.awq(weight, 8), AWQ),
    "gptq": (lambda module, weight: packers.gptq(weight, 4, 8), GPTQ),
    "fp8": (lambda module, weight: packers.fp8_blocks(weight, (12, 10)), BLOCKS),
    "packed": (
        lambda module, weight: None if module == "lm_head" else packers.packed(weight, 4, 8),
        PACKED,
    ),
}


def eight(kind, whole=False, except_for="lm_head"):
    return lambda module, weight: (
        None if except_for in module else packers.one_byte(weight, kind, whole)
    )


def load(folder, **options):
    return jaxspec.load(folder, drafter={}, dtype="float32", **options)


def of_full(folder, full, quantize=None):
    """The variables of full weights."""
    return from_hf(full, target_config(read_json(folder / "config.json")), "float32", quantize)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("form", PACKERS)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe_mixed"])
def test_a_model_in_few_bits_is_the_model_of_its_full_weights(form, name, tmp_path, caplog):
    """Fused and stacked leaves too, from three files; the log says what they take."""
    pack, settings = PACKERS[form]
    full = packers.write_model(name, tmp_path, pack, settings, shards=3)
    params = load(tmp_path)
    assert_same(params.target, of_full(tmp_path, full))
    (line,) = caplog.messages
    assert "GB take" in line and "as float32 (with quantize='int8': " in line
    assert jaxspec.decode(params, [3, 5, 7], max_new_tokens=4, drafter="ar").tokens


def test_few_bits_can_be_quantised_again(tmp_path, caplog):
    pack, settings = PACKERS["awq"]
    full = packers.write_model("qwen3", tmp_path, pack, settings)
    assert_same(load(tmp_path, quantize="int8").target, of_full(tmp_path, full, "int8"))
    assert "as int8" in caplog.messages[0] and "with quantize" not in caplog.messages[0]


@pytest.mark.parametrize("whole", [False, True], ids=["outputs", "tensor"])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("name", ["qwen3_tied", "qwen3_moe_mixed"])
def test_one_byte_per_output_stays_bit_for_bit(name, kind, whole, tmp_path, caplog):
    full = packers.write_model(name, tmp_path, eight(kind, whole), EIGHT)
    target = load(tmp_path).target
    assert kind_of(target) == kind and not caplog.messages
    params, scales = flatten_dict(target["params"]), flatten_dict(target[COLLECTION])
    wanted = flatten_dict(of_full(tmp_path, full)["params"])
    assert {path[-1] for path in scales} >= {"kernel"}
    assert ("lm_head",) not in scales and ("embedding",) not in scales
    for path, array in params.items():
        if path in scales:
            assert array.dtype == {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[kind]
            assert scales[path].dtype == jnp.float32
            axis = contracted_axis(path, False)
            array = array.astype(jnp.float32) * jnp.expand_dims(scales[path], axis)
        np.testing.assert_array_equal(array, wanted[path])
    assert jaxspec.decode(load(tmp_path), [3, 5, 7], max_new_tokens=4, drafter="ar").tokens


def test_the_forward_pass_is_that_of_the_full_weights(tmp_path):
    full = packers.write_model("qwen3_moe_mixed", tmp_path, eight("int8"), EIGHT)
    held, plain = load(tmp_path), load(tmp_path, quantize="none")
    assert_same(plain.target, of_full(tmp_path, full))
    found = [
        jaxspec.decode(one, [3, 5, 7], max_new_tokens=12, drafter="ar") for one in (held, plain)
    ]
    assert found[0].tokens == found[1].tokens


def test_what_is_asked_for_counts(tmp_path):
    """Of int8 values: `int8` keeps them and adds the output projection, `fp8` replaces them."""
    full = packers.write_model("qwen3", tmp_path, eight("int8"), EIGHT)
    kept, other = load(tmp_path).target, load(tmp_path, quantize="int8").target
    added = flatten_dict(other[COLLECTION]).keys() - flatten_dict(kept[COLLECTION]).keys()
    assert added == {("lm_head",)} and other["params"]["lm_head"].dtype == jnp.int8
    for layer in ("layers_0", "layers_2"):
        assert_same(other["params"][layer], kept["params"][layer])
        assert_same(other[COLLECTION][layer], kept[COLLECTION][layer])
    assert_same(load(tmp_path, quantize="fp8").target, of_full(tmp_path, full, "fp8"))


@pytest.mark.parametrize(("name", "odd"), [("qwen3", "0.self_attn.k_proj"), ("qwen3_moe", "experts.1.down_proj")])  # fmt: skip
def test_a_leaf_of_which_a_part_is_full_is_full(name, odd, tmp_path):
    """And a layer's experts are in one byte all or not at all."""
    full = packers.write_model(name, tmp_path, eight("fp8", except_for=odd), EIGHT | {"ignore": []})
    target = load(tmp_path).target
    scales, wanted = flatten_dict(target[COLLECTION]), of_full(tmp_path, full)
    assert ("layers_0", "attention", "o", "kernel") in scales
    for path in [("layers_0", "attention", "qkv", "kernel")] if name == "qwen3" else [
        ("layers_0", "mlp", "gate_up"), ("layers_0", "mlp", "down"),
    ]:  # fmt: skip
        assert path not in scales
        np.testing.assert_array_equal(
            flatten_dict(target["params"])[path], flatten_dict(wanted["params"])[path]
        )


def test_a_held_target_is_written_when_it_is_loaded_in_full(tmp_path):
    packers.write_model("qwen3", tmp_path / "in", eight("int8"), EIGHT)
    with pytest.raises(ValueError, match="cannot be written: load the model with quantize='none'"):
        jaxspec.save(load(tmp_path / "in"), tmp_path / "out")
    full = load(tmp_path / "in", quantize="none")
    jaxspec.save(full, tmp_path / "out")
    assert_same(load(tmp_path / "out").target, full.target)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_idle_biases_of_gptq(value, tmp_path):
    """AutoGPTQ wrote biases of zeros for layers that have none; others are an error."""
    extra = {"model.layers.0.mlp.up_proj.bias": np.full(24, value, np.float32)}
    pack, settings = PACKERS["gptq"]
    full = packers.write_model("qwen3", tmp_path, pack, settings, extra=extra)
    if value:
        with pytest.raises(ValueError, match="1 unexpected: model.layers.0.mlp.up_proj.bias"):
            load(tmp_path)
    else:
        assert_same(load(tmp_path).target, of_full(tmp_path, full))


def test_scales_of_activations_and_caches_are_not_read(tmp_path):
    layer = "model.layers.0"
    extra = {
        f"{layer}.mlp.up_proj.input_scale": np.ones(1, np.float32),
        f"{layer}.self_attn.k_scale": np.ones(1, np.float32),
    }
    full = packers.write_model("qwen3", tmp_path, PACKERS["fp8"][0], BLOCKS, extra=extra)
    assert_same(load(tmp_path).target, of_full(tmp_path, full))


def test_a_draft_model_in_few_bits(tmp_path):
    pack, settings = PACKERS["gptq"]
    full = packers.write_model("qwen3", tmp_path, pack, settings)
    params = jaxspec.load(
        packers.MODELS / "qwen3", drafter={"draft_model": tmp_path}, dtype="float32"
    )
    assert_same(params.drafters["draft_model"], of_full(tmp_path, full))


def test_a_drafter_is_compared_with_the_full_weights(tmp_path, monkeypatch):
    """Its copy of an output projection that the target stores in four bits."""
    full = packers.write_model("qwen3", tmp_path / "target", *PACKERS["awq"])
    packers.save_shards({"lm_head.weight": full["lm_head.weight"]}, tmp_path, 1)
    monkeypatch.setattr(compare_files, "find_config", lambda directory: None)
    names = {"lm_head.weight": "lm_head.weight"}
    monkeypatch.setattr(compare_files, "borrowed_tensors", lambda config, hf: names)
    assert compare_files.compare_borrowed(tmp_path / "target", tmp_path, {}) == []
    packers.save_shards({"lm_head.weight": full["lm_head.weight"] + 1}, tmp_path, 1)
    (warning,) = compare_files.compare_borrowed(tmp_path / "target", tmp_path, {})
    assert "differs from the target's in 48 rows" in warning


def test_damaged_values_are_refused(tmp_path):
    def pack(module, weight):
        stored, full = packers.one_byte(weight, "fp8")
        if module.endswith("0.self_attn.v_proj"):
            stored["weight"].view(np.uint8)[3, 2] = 0xFF
        return stored, full

    packers.write_model("qwen3", tmp_path, pack, EIGHT | {"ignore": []})
    with pytest.raises(ValueError, match=r"0\.self_attn\.v_proj\.weight holds NaN"):
        load(tmp_path)


def test_inspect_says_how_weights_are_stored(tmp_path):
    pack, settings = PACKERS["awq"]
    full = packers.write_model("qwen3", tmp_path, pack, settings)
    about = describe_checkpoint(tmp_path)
    assert about["readable"] and about["family"] == "target"
    assert about["weights"]["quantised"] == "awq"
    assert about["weights"]["parameters"] == sum(one.size for one in full.values())


def test_inspect_says_why_a_format_is_not_read(tmp_path):
    packers.write_model("qwen3", tmp_path, lambda *_: None, {"quant_method": "hqq"})
    about = describe_checkpoint(tmp_path)
    assert not about["readable"] and "quantised by hqq" in about["problem"]
    with pytest.raises(ValueError, match="quantised by hqq"):
        load(tmp_path)


def test_settings_of_older_files(tmp_path):
    """compressed-tensors once called its entry `compression_config`."""
    pack, settings = PACKERS["packed"]
    settings = {name: one for name, one in settings.items() if name != "quant_method"}
    full = packers.write_model("qwen3", tmp_path, pack, settings, entry="compression_config")
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert_same(load(tmp_path).target, of_full(tmp_path, full))


FLOAT4 = PACKED | {
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 8}}
    },
}
FOUR = {name: PACKERS[name] for name in ("awq", "gptq", "packed")} | {
    "nvfp4": (
        lambda module, weight: None if module == "lm_head" else packers.nvfp4(weight, 8),
        FLOAT4,
    ),
    "zeros": (
        lambda module, weight: (
            None if module == "lm_head" else packers.packed(weight, 4, 8, symmetric=False)
        ),
        PACKED,
    ),
}


def logits(params):
    """Logits of eight tokens, as the program of any other call computes them."""
    tokens = jnp.arange(8)[None]

    @jax.jit
    def forward(variables):
        model = Transformer(params.spec.target).bind(variables)
        return model.logits(model(tokens, tokens).hidden)

    return forward(params.target)


@pytest.mark.parametrize("form", mark_thorough(["nvfp4", "packed"], FOUR))
def test_four_bits_stay_where_they_are_asked_for(form, tmp_path):
    """Every number that the packed weights stand for is that of the file, in an eighth of the bytes;
    and products give the logits of the full weights, in Pallas' interpreter too.
    """
    pack, settings = FOUR[form]
    full = packers.write_model("qwen3", tmp_path, pack, settings)
    params = load(tmp_path, quantize="int4")
    assert kind_of(params.target) == "int4"
    flat, wanted = flatten_dict(params.target["params"]), of_full(tmp_path, full)
    groups = flatten_dict(params.target[FOUR_BITS])
    assert {path for path in flat if path[-1] == "kernel"} == set(groups)
    for path, array in flatten_dict(wanted["params"]).items():
        found = flat[path]
        if path in groups:
            assert found.dtype == jnp.uint8 and found.nbytes * 8 == array.nbytes
            assert groups[path].dtype == {"awq": "float16", "gptq": "float16"}.get(
                form, "float32" if form == "nvfp4" else "bfloat16"
            )
            found = unpack(found, groups[path])
        np.testing.assert_array_equal(found, array)
    expected = logits(params.replace(target=wanted))
    np.testing.assert_allclose(logits(params), expected, rtol=1e-4, atol=1e-4)
    with using("interpret"):
        np.testing.assert_allclose(logits(params), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_drafting_for_a_target_of_four_bits_changes_nothing(tmp_path):
    packers.write_model("qwen3", tmp_path, *PACKERS["awq"])
    params = load(tmp_path, quantize="int4")
    out = [
        jaxspec.decode(params, [3, 5, 7, 3, 5, 7], max_new_tokens=12, drafter=drafter).tokens
        for drafter in ("ar", "prompt_lookup")
    ]
    assert out[0] == out[1]


@pytest.mark.parametrize("form", [pytest.param("awq", marks=pytest.mark.thorough), "nvfp4"])
def test_experts_stay_in_four_bits_and_the_output_projection_does_not(form, tmp_path):
    full = packers.write_model("qwen3_moe_mixed", tmp_path, *FOUR[form])
    params = load(tmp_path, quantize="int4")
    flat, wanted = flatten_dict(params.target["params"]), of_full(tmp_path, full)
    groups = flatten_dict(params.target[FOUR_BITS])
    assert {path[-1] for path in groups} == {"kernel", "gate_up", "down"}
    for path, array in flatten_dict(wanted["params"]).items():
        found = flat[path]
        if path in groups:
            assert found.nbytes * 8 == array.nbytes
            many = jax.vmap(unpack) if path[-1] != "kernel" else unpack
            found = many(found, groups[path])
        np.testing.assert_array_equal(found, array)
    expected = logits(params.replace(target=wanted))
    np.testing.assert_allclose(logits(params), expected, rtol=1e-4, atol=1e-4)
    with using("interpret"):
        np.testing.assert_allclose(logits(params), expected, rtol=1e-4, atol=1e-4)


def test_eight_bits_stay_beside_four(tmp_path):
    def pack(module, weight):
        down = "down_proj" in module
        return packers.one_byte(weight, "int8") if down else packers.packed(weight, 4, 8)

    settings = PACKED | {"ignore": [], "format": "mixed-precision"}
    settings["config_groups"] = PACKED["config_groups"] | {
        "group_1": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8}}
    }
    full = packers.write_model("qwen3", tmp_path, pack, settings)
    params = load(tmp_path, quantize="int4")
    found = {path[-2] for path in flatten_dict(params.target[FOUR_BITS])}
    assert found == {"qkv", "o", "gate_up"}
    assert {path[-2] for path in flatten_dict(params.target[COLLECTION])} == {"down"}
    expected = logits(params.replace(target=of_full(tmp_path, full)))
    np.testing.assert_allclose(logits(params), expected, rtol=1e-4, atol=1e-4)


def test_four_bits_are_refused_where_there_are_none(tmp_path):
    order = np.random.default_rng(0)

    def shuffled(module, weight):
        index = order.permutation(np.arange(weight.shape[1]) // 8)
        return packers.gptq(weight, 4, 8, order=index)

    packers.write_model("qwen3", tmp_path, shuffled, GPTQ | {"desc_act": True})
    for folder in (tmp_path, packers.MODELS / "qwen3"):
        with pytest.raises(ValueError, match="quantize='int4' keeps weights .* choose int8 or fp8"):
            load(folder, quantize="int4")
    packers.write_model("qwen3", tmp_path, *PACKERS["awq"])
    with pytest.raises(ValueError, match="weights quantised to int4 cannot be written"):
        jaxspec.save(load(tmp_path, quantize="int4"), tmp_path / "out")


@pytest.mark.slow
def test_devices_share_what_is_stored_in_one_byte(tmp_path):
    """Every device reads its share of values and scales; of few bits too, and tied embeddings."""

    def tied(module, weight):
        return packers.one_byte(weight, "int8")

    made = {
        "tied": ("qwen3_tied", tied, EIGHT | {"ignore": []}),
        "moe": (tmp_path / "toy", eight("fp8"), EIGHT),
        "gptq": ("qwen3", *PACKERS["gptq"]),
    }
    jaxspec.save(make_params("qwen3_moe"), tmp_path / "toy")
    for folder, one in made.items():
        packers.write_model(one[0], tmp_path / folder, *one[1:], shards=2)
    cases = [
        ("tied", 2, None, "channel"),
        ("tied", 4, "int8", "channel"),
        ("gptq", 2, None, "channel"),
    ]
    cases += [
        ("moe", 2, None, "channel"),
        ("moe", 2, None, "expert"),
        ("moe", 2, "none", "channel"),
    ]
    names = ("folder", "devices", "quantize", "experts")
    request = [dict(zip(names, (str(tmp_path / one), *rest), strict=True)) for one, *rest in cases]
    assert json.loads(run_on_devices(4, "sharded_load.py", request)) == [0] * len(cases)


@pytest.mark.slow
def test_devices_do_not_share_four_bits(tmp_path):
    packers.write_model("qwen3", tmp_path, *PACKERS["awq"])
    case = dict(folder=str(tmp_path), devices=2, quantize="int4", experts="channel")
    with pytest.raises(AssertionError, match="devices cannot share weights of four bits: load"):
        run_on_devices(2, "sharded_load.py", [case])
