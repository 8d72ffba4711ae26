"""Strict loading: every misfit in one report, damaged values named, memory bounded."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED

from jaxspec.drafters.dflash import weights as drafter_weights
from jaxspec.drafters.dflash.hf_config import drafter_config
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config

GOLDEN = SHIPPED
CONFIGS = {
    name: target_config(read_json(GOLDEN / "targets" / name / "config.json"))
    for name in ("qwen3", "qwen3_tied")
}
MOE = target_config(read_json(GOLDEN / "targets" / "qwen3_moe" / "config.json"))


@pytest.fixture
def tensors():
    return dict(WeightFiles(GOLDEN / "targets" / "qwen3"))


def load(tensors, dtype="float32"):
    return target_weights.from_hf(tensors, CONFIGS["qwen3"], dtype)


def test_layout(tensors):
    """Fused parts stand in the order that the module splits them."""
    layer = load(tensors)["params"]["layers_1"]
    name = "model.layers.1."
    qkv = np.concatenate([tensors[f"{name}self_attn.{x}_proj.weight"].T for x in "qkv"], axis=1)
    np.testing.assert_array_equal(layer["attention"]["qkv"]["kernel"], qkv)
    gate_up = np.concatenate(
        [tensors[f"{name}mlp.{x}_proj.weight"].T for x in ("gate", "up")], axis=1
    )
    np.testing.assert_array_equal(layer["mlp"]["gate_up"]["kernel"], gate_up)


def test_experts_are_stacked():
    tensors = dict(WeightFiles(GOLDEN / "targets" / "qwen3_moe"))
    mlp = target_weights.from_hf(tensors, MOE)["params"]["layers_2"]["mlp"]
    expert = "model.layers.2.mlp.experts.3."
    gate_up = np.concatenate(
        [tensors[f"{expert}{x}_proj.weight"].T for x in ("gate", "up")], axis=1
    )
    np.testing.assert_array_equal(mlp["gate_up"][3], gate_up.astype(np.float32))
    np.testing.assert_array_equal(
        mlp["down"][3], tensors[f"{expert}down_proj.weight"].T.astype(np.float32)
    )
    np.testing.assert_array_equal(
        mlp["router"], tensors["model.layers.2.mlp.gate.weight"].T.astype(np.float32)
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype(tensors, dtype):
    params = load(tensors, dtype)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}
    back = target_weights.to_hf(params, CONFIGS["qwen3"])
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(back[name], tensor.astype(back[name].dtype))


def test_unknown_dtype(tensors):
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        load(tensors, "int8")


def test_one_report_names_every_misfit(tensors):
    del tensors["model.norm.weight"]
    del tensors["lm_head.weight"]
    tensors["model.layers.3.input_layernorm.weight"] = np.ones(16, np.float32)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.ones((24, 16), np.float32)
    with pytest.raises(WeightMismatch) as caught:
        load(tensors)
    assert caught.value.missing == ["model.norm.weight", "lm_head.weight"]
    assert caught.value.unexpected == ["model.layers.3.input_layernorm.weight"]
    assert caught.value.misshapen == {"model.layers.0.mlp.down_proj.weight": ((24, 16), (16, 24))}
    message = str(caught.value)
    assert "\n" not in message
    assert "2 missing: model.norm.weight, lm_head.weight; 1 unexpected: " in message
    assert (
        "1 misshapen: model.layers.0.mlp.down_proj.weight [24, 16] (expected [16, 24])" in message
    )


def test_a_long_report_is_cut():
    with pytest.raises(WeightMismatch, match=r"36 missing: .*… \(28 more\)") as caught:
        load({})
    assert len(caught.value.missing) == 36


def test_rotary_buffers_are_ignored(tensors):
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["model.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    load(tensors)


def test_a_tied_head_may_be_stored():
    tensors = dict(WeightFiles(GOLDEN / "targets" / "qwen3_tied"))
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    params = target_weights.from_hf(tensors, CONFIGS["qwen3_tied"])
    assert "lm_head" not in params["params"]
    assert "lm_head.weight" not in target_weights.to_hf(params, CONFIGS["qwen3_tied"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_damaged_values(tensors, bad, stored):
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name] = tensors[name].astype(stored)
    tensors[name][3, 2] = bad
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(
            ValueError, match=f"{name} holds NaN or infinite values: the checkpoint is damaged"
        ):
            load(tensors, dtype)


def test_overflow_is_not_called_damage(tensors):
    tensors["model.norm.weight"][0] = 1e5
    with pytest.raises(
        ValueError,
        match="model.norm.weight does not fit in float16: load it with dtype='float32' or",
    ):
        load(tensors, "float16")


def test_tensors_are_read_once_and_only_after_the_check(tensors):
    class Counting(dict):
        reads: list[str] = []

        def __getitem__(self, name):
            self.reads.append(name)
            return super().__getitem__(name)

        def shape(self, name):
            return super().__getitem__(name).shape

    load(Counting(tensors))
    assert sorted(Counting.reads) == sorted(tensors)
    Counting.reads.clear()
    with pytest.raises(WeightMismatch):
        load(Counting({k: v for k, v in tensors.items() if k != "model.norm.weight"}))
    assert Counting.reads == []


def test_parameters_of_another_config(tensors):
    params = load(tensors)
    with pytest.raises(
        ValueError,
        match="params has no layers_0/attention/qkv/bias: it was made for another config",
    ):
        target_weights.to_hf(params, CONFIGS["qwen3_tied"])
    params["params"]["norm"]["scale"] = np.ones(3)
    with pytest.raises(ValueError, match=r"params norm/scale is \(3,\), the config says \(16,\)"):
        target_weights.to_hf(params, CONFIGS["qwen3"])


@pytest.mark.parametrize("method", ["dflash", "jetspec"])
def test_drafters_round_trip(method):
    directory = GOLDEN / method / "drafter"
    config = drafter_config(read_json(directory / "config.json"))
    tensors = dict(WeightFiles(directory))
    params = drafter_weights.from_hf(tensors, config, drafter_weights.drafter_leaves(config))
    np.testing.assert_array_equal(params["params"]["fc"]["kernel"], tensors["fc.weight"].T)
    np.testing.assert_array_equal(
        params["params"]["context_norm"]["scale"], tensors["hidden_norm.weight"]
    )
    np.testing.assert_array_equal(params["params"]["norm"]["scale"], tensors["norm.weight"])
    back = drafter_weights.to_hf(params, config, drafter_weights.drafter_leaves(config))
    assert set(back) == set(tensors) and len(back) == 3 + 11 * config.num_layers
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)


def test_a_drafter_with_its_own_embeddings_is_refused():
    directory = GOLDEN / "dflash" / "drafter"
    tensors = dict(WeightFiles(directory)) | {"embed_tokens.weight": np.ones((257, 64), np.float32)}
    config = drafter_config(read_json(directory / "config.json"))
    with pytest.raises(WeightMismatch, match="1 unexpected: embed_tokens.weight"):
        drafter_weights.from_hf(tensors, config, drafter_weights.drafter_leaves(config))
