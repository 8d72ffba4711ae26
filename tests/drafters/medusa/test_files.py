"""Files of Medusa heads, ParallelSpec and Falcon: round trips to the byte, and what is refused."""

import shutil

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon import FALCON
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.medusa import MEDUSA
from jaxspec.drafters.medusa import files as medusa
from jaxspec.drafters.medusa import hf_config as medusa_config
from jaxspec.drafters.medusa.network import MedusaConfig
from jaxspec.drafters.parallelspec import PARALLELSPEC
from jaxspec.drafters.parallelspec.network import ParallelSpecConfig
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import write_safetensors
from jaxspec.io.weights.weight_map import WeightMismatch
from training.drafters.falcon import init_falcon
from training.drafters.medusa import init_medusa
from training.drafters.parallelspec import init_parallelspec

GOLDEN = SHIPPED / "medusa" / "draft"
SIZES = dict(hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, ffn_size=12)
TARGET = TargetConfig(**SIZES | {"num_layers": 6}, vocab_size=19)
OF_TARGET = dict(
    feature_layers=(1, 3, 4), target_hidden_size=8, vocab_size=19, score_temperature=(0.5, 0.5)
)
CASES = {
    "medusa": (
        MEDUSA,
        init_medusa,
        MedusaConfig(8, 3, layers=2, feature_layers=(6,), vocab_size=19),
    ),
    "medusa_shared": (
        MEDUSA,
        init_medusa,
        MedusaConfig(8, 2, own_projection=False, feature_layers=(6,), vocab_size=19),
    ),
    "parallelspec": (
        PARALLELSPEC,
        init_parallelspec,
        ParallelSpecConfig(**SIZES, **OF_TARGET, slots=3),
    ),
    "falcon": (
        FALCON,
        init_falcon,
        FalconConfig(**SIZES, **OF_TARGET, lstm_size=5, qk_norm=False, draft_vocab_size=11),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(tmp_path, name):
    """Written and read again: the config, every array, and the bytes of files written once more."""
    record, init, config = CASES[name]
    shapes = jax.eval_shape(lambda: init(config, 0))
    generator = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: generator.normal(size=leaf.shape).astype(np.float32), shapes
    )
    if config.draft_vocab_size:
        variables |= {"draft": {"ids": np.arange(2, 13, dtype=np.int32)}}
    form, first, second = record.files, tmp_path / "first", tmp_path / "second"
    form.write(first, config, variables, About(6, 64))
    hf = read_json(first / "config.json")
    assert form.matches(hf) and form.for_target(form.config_from_hf(hf), TARGET) == config
    form.check(first, config)
    again = form.read(first, config, "float32")
    jax.tree.map(np.testing.assert_array_equal, again, variables)
    form.write(second, config, again, About(6, 64))
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    for other, _, _ in CASES.values():
        assert other is record or not other.files.matches(hf)


def test_published_heads(tmp_path):
    """The config says nothing of the target, and the heads' file has a name of its own."""
    config = medusa_config.config_from_hf(
        {
            name: value
            for name, value in read_json(GOLDEN / "config.json").items()
            if "_size" not in name
        }
    )
    assert (config.hidden_size, config.vocab_size, config.feature_layers) == (0, 0, ())
    target = TargetConfig(**SIZES | {"hidden_size": 64, "num_layers": 8}, vocab_size=257)
    config = medusa_config.for_target(config, target)
    assert config == MedusaConfig(64, 4, feature_layers=(8,), vocab_size=257)
    params = medusa.read(GOLDEN, config, "bfloat16")["params"]
    assert params["block_0"]["kernel"].shape == (4, 64, 64) and params["lm_head"].shape == (
        4,
        64,
        257,
    )
    with pytest.raises(
        FileNotFoundError,
        match="has no Medusa heads: expected medusa_lm_head.safetensors, medusa_lm_head.pt or",
    ):
        medusa.check(tmp_path, config)
    shutil.copyfile(GOLDEN / medusa.WEIGHTS, tmp_path / medusa.WEIGHTS)
    with pytest.raises(WeightMismatch, match=r"2 missing: 4.0.linear.weight"):
        medusa.check(
            tmp_path, MedusaConfig(64, 5, own_projection=False, feature_layers=(8,), vocab_size=257)
        )


@pytest.mark.parametrize(("prefix", "shared"), [("", False), ("medusa_heads.", True)])
def test_vllms_layout(tmp_path, prefix, shared):
    """No biases in the blocks; heads with a projection each, and with a copy of the target's."""
    hf = {
        "architectures": ["MedusaModel"],
        "num_heads": 2,
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "vocab_size": 19,
    }
    config = medusa_config.for_target(
        medusa_config.config_from_hf(hf | {"original_lm_head": shared}), TARGET
    )
    assert config == MedusaConfig(
        8, 2, 2, own_projection=not shared, feature_layers=(6,), vocab_size=19
    )
    generator = np.random.default_rng(0)
    tensors = {f"blocks.{i}.layers.{j}.weight": (8, 8) for i in range(2) for j in range(2)}
    tensors |= (
        {"lm_head.weight": (19, 8)}
        if shared
        else {f"lm_heads.{i}.weight": (19, 8) for i in range(2)}
    )
    tensors = {
        prefix + name: generator.normal(size=shape).astype(np.float32)
        for name, shape in tensors.items()
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    medusa.check(tmp_path, config)
    params = medusa.read(tmp_path, config, "float32")["params"]
    np.testing.assert_array_equal(
        params["block_1"]["kernel"][0].T, tensors[f"{prefix}blocks.0.layers.1.weight"]
    )
    assert not params["block_1"]["bias"].any() and ("lm_head" in params) is not shared
    if not shared:
        np.testing.assert_array_equal(params["lm_head"][1].T, tensors["lm_heads.1.weight"])
    with pytest.raises(ValueError, match="truncated_vocab_size is not supported"):
        medusa_config.config_from_hf(hf | {"truncated_vocab_size": 10})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            MedusaConfig(9, 2),
            "its hidden size is 9, the target's 8; use a drafter trained for this target",
        ),
        (MedusaConfig(8, 2, vocab_size=20), "its vocab size is 20, the target's 19"),
        (MedusaConfig(8, 2, feature_layers=(7,)), "made for a target of 7 layers, this one has 6"),
    ],
)
def test_heads_of_another_target(config, message):
    with pytest.raises(ValueError, match=message):
        medusa_config.for_target(config, TARGET)
