"""Published EAGLE-3 files: both layouts, what is written, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import torch_zip
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3 import hf_config as eagle_config
from jaxspec.drafters.eagle3.network import EagleDrafter
from jaxspec.drafters.format import About
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.files.torch_files import TORCH_WEIGHTS
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.targets.families.hf_config import target_config

GOLDEN = SHIPPED
DRAFT = GOLDEN / "eagle3" / "draft"
HF, TENSORS = read_json(DRAFT / "config.json"), load_file(DRAFT / WEIGHTS)
TARGET = target_config(read_json(GOLDEN / "tiny_llama" / "config.json"))


def write(directory: Path, tensors, torch: bool = False) -> Path:
    directory.mkdir()
    torch_zip.write_torch_zip(directory / TORCH_WEIGHTS, tensors) if torch else save_file(
        tensors, directory / WEIGHTS
    )
    return directory


def speculators(**changes) -> dict:
    """The published config in the speculators schema."""
    layer = {
        name: value
        for name, value in HF.items()
        if name not in ("architectures", "draft_vocab_size")
    }
    flags = {
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": HF["draft_vocab_size"],
        "target_hidden_size": None,
        **flags,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "embed_requires_grad": False,
        "transformer_layer_config": layer,
        **changes,
    }


def test_the_published_config():
    config = eagle_config.config_from_hf(HF)
    assert (config.qk_norm, config.norm_eps, config.head_dim, config.draft_vocab_size) == (
        False,
        1e-5,
        16,
        160,
    )
    assert config.feature_layers == () and eagle_config.for_target(
        config, TARGET
    ).feature_layers == (
        1,
        3,
        4,
    )
    stated = HF | {
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
            "use_aux_hidden_state": True,
        }
    }
    assert eagle_config.config_from_hf(stated).feature_layers == (1, 3, 5)  # outputs
    assert eagle_config.config_from_hf(HF | {"draft_vocab_size": None}).draft_vocab_size is None
    unnamed = HF | {"architectures": ["LlamaForCausalLM"]}
    assert (
        eagle_config.matches(HF)
        and eagle_config.matches(unnamed)
        and eagle_config.matches(speculators())
    )
    others = (
        read_json(GOLDEN / "tiny_llama" / "config.json"),
        speculators(speculators_model_type="dflash"),
    )
    assert not any(eagle_config.matches(hf) for hf in others)


def test_layers_behind_the_last_are_counted_by_inputs():
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, TARGET.num_layers]}
    config = eagle_config.config_from_hf(HF | {"eagle_config": ids})
    layers = eagle_config.for_target(config, TARGET).feature_layers
    assert layers == (1, 3, TARGET.num_layers - 1)


@pytest.mark.thorough
def test_a_window_hides_what_lies_before_it():
    """A row's output is that of the rows in its window alone, with and without a cache."""
    config = dataclasses.replace(eagle_config.config_from_hf(HF), window=5)
    drafter, rows = EagleDrafter(config), 12
    random = np.random.default_rng(0)
    tokens, features = random.normal(size=(2, 1, rows, config.hidden_size)).astype(np.float32)
    variables = drafter.init(
        jax.random.key(0), tokens, features, np.arange(rows)[None], method=_touch
    )

    def run(*rows, **more):
        places = np.arange(*rows)
        pairs = tokens[:, places], features[:, places]
        return drafter.apply(variables, *pairs, places[None], **more)

    whole, (k, v) = run(rows)
    for kept, same in ((6, True), (5, True), (4, False)):
        alone = run(rows - kept, rows)[0]
        assert np.allclose(whole[:, -1], alone[:, -1], atol=1e-5) == same
    cache = filled((k[None, :, :8],), (v[None, :, :8],), np.array([8]))
    np.testing.assert_allclose(whole[:, 8:], run(8, rows, prefix=cache.prefix(0))[0], atol=1e-5)


def _touch(drafter, tokens, features, positions):
    return drafter.logits(drafter(tokens, features, positions)[0])


def test_the_speculators_schema(tmp_path):
    config = eagle_config.config_from_hf(speculators())
    assert config == eagle_config.for_target(
        eagle_config.config_from_hf(HF), TARGET
    )  # its ids are inputs of layers
    assert eagle_config.config_from_hf(speculators(norm_before_residual=True)).norm_before_residual
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in TENSORS.items()}
    renamed["embed_tokens.weight"] = np.zeros((config.vocab_size, config.hidden_size), np.float32)
    written = eagle.tensors(eagle.read(write(tmp_path / "x", renamed), config, "float32"), config)
    assert written.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(written[name], tensor)


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_read_write_read_is_tensor_equal(tmp_path, torch, reduced):
    tensors, hf = dict(TENSORS), dict(HF)
    if not reduced:
        hf |= {"draft_vocab_size": 257}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        tensors["lm_head.weight"] = np.ones((257, 64), ml_dtypes.bfloat16)
    tensors = {
        name: tensor.astype(ml_dtypes.bfloat16) if tensor.dtype == np.float32 else tensor
        for name, tensor in tensors.items()
    }
    config, first = (
        eagle_config.for_target(eagle_config.config_from_hf(hf), TARGET),
        write(tmp_path / "first", tensors, torch),
    )
    eagle.check(first, config)
    variables = eagle.read(first, config, "bfloat16")
    assert ("draft" in variables) == reduced
    written = eagle.tensors(variables, config)
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert written[name].dtype == tensor.dtype
        np.testing.assert_array_equal(written[name], tensor)


NORMS = {"fc_norm": True, "norm_output": True}
WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 9}


@pytest.mark.parametrize(
    "form",
    [
        HF,
        speculators(norm_before_residual=True),
        speculators(norm_before_fc=True, norm_output=True),
        HF | NORMS | WINDOW,
        HF | {"eagle_config": HF.get("eagle_config", {}) | {"norm_before_fc": True}},
    ],
)
def test_a_written_config_reads_back(form):
    config = eagle_config.for_target(eagle_config.config_from_hf(form), TARGET)
    hf = json.loads(json.dumps(eagle_config.config_to_hf(config, About(8, 512), "float32")))
    assert eagle_config.matches(hf) and eagle_config.config_from_hf(hf) == config
    del hf["jaxspec"]  # as another writer's
    assert eagle_config.config_from_hf(hf) == config
    assert (
        hf["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
        and hf["max_position_embeddings"] == 512
    )


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        (HF | {"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        (HF | {"norm_output": True}, "norm_output means the norm before the output projection"),
        (HF | {"mlp_bias": True}, "mlp_bias is not supported"),
        (HF | {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        (HF | {"draft_vocab_size": 300}, "draft_vocab_size is 300"),
        (
            HF | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 3, 4]}},
            "must be target layers, 0 or higher",
        ),
        (
            speculators(eagle_aux_hidden_state_layer_ids=[0, 4, 5]),
            "must be target layers, 1 or higher",
        ),
        (speculators(norm_before_residual=None), "lacks 'norm_before_residual'"),
        (
            speculators(transformer_layer_config={"model_type": "qwen3"}),
            "model_type 'llama', not 'qwen3'",
        ),
    ],
)
def test_refused_configs(hf, message):
    with pytest.raises(ValueError, match=message):
        eagle_config.config_from_hf(hf)


def test_drafters_of_another_target():
    config = eagle_config.config_from_hf(HF)
    with pytest.raises(ValueError, match="at least 7 layers, not 6"):
        eagle_config.for_target(
            config,
            TargetConfig(
                hidden_size=64,
                num_layers=6,
                num_heads=4,
                num_kv_heads=2,
                head_dim=16,
                ffn_size=64,
                vocab_size=257,
            ),
        )
    with pytest.raises(
        ValueError,
        match="hidden size is 64.*the target's 32; its vocabulary has 257 tokens, the target's 99",
    ):
        eagle_config.for_target(
            config,
            TargetConfig(
                hidden_size=32,
                num_layers=8,
                num_heads=4,
                num_kv_heads=2,
                head_dim=16,
                ffn_size=64,
                vocab_size=99,
            ),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc.weight": None}, "missing: fc.weight"),
        ({"fc_norm.0.weight": np.ones(64, np.float32)}, "unexpected: fc_norm.0.weight"),
        (
            {"embed_tokens.weight": np.ones((257, 32), np.float32)},
            r"misshapen: embed_tokens.weight \[257, 32\]",
        ),
        ({"norm.weight": np.ones(64, np.int32)}, "of another type: norm.weight I32"),
    ],
)
def test_refused_tensors(tmp_path, changes, message):
    config = eagle_config.config_from_hf(HF)
    tensors = {name: tensor for name, tensor in (TENSORS | changes).items() if tensor is not None}
    directory = write(tmp_path / "x", tensors)
    for refuse in (
        lambda: eagle.check(directory, config),
        lambda: eagle.read(directory, config, "float32"),
    ):
        with pytest.raises(WeightMismatch, match=message):
            refuse()


def test_a_wrong_map_of_draft_tokens(tmp_path):
    config = eagle_config.config_from_hf(HF)
    ids = TENSORS["d2t"] + np.arange(len(TENSORS["d2t"]))
    with pytest.raises(ValueError, match="it must hold offsets"):
        eagle.check(write(tmp_path / "ids", TENSORS | {"d2t": ids}), config)
