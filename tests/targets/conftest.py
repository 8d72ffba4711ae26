"""Tiny models with what transformers' PyTorch code computes for them; written by
make_fixtures.py.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

from jaxspec.core.config import TargetConfig
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.transformer import Transformer
from jaxspec.targets.weights import from_hf

GOLDEN = SHIPPED / "targets"
MODELS = ("qwen3", "qwen3_tied", "llama", "llama_scaled", "qwen3_moe", "qwen3_moe_mixed")
MODELS += ("gpt_oss", "gemma3", "gemma4", "qwen3_5")
# What these need, the others above have too, or a test of its own.
FURTHER = (
    "qwen2",
    "phi3",
    "olmo3",
    "smollm3",
    "granite",
    "glm4_moe",
    "gemma4_moe",
    "mimo_v2_flash",
)


class Golden(NamedTuple):
    """A loaded model and its expected arrays."""

    config: TargetConfig
    module: Transformer
    params: dict
    expected: dict[str, np.ndarray]


@pytest.fixture(
    scope="session",
    params=[*MODELS, *(pytest.param(name, marks=pytest.mark.thorough) for name in FURTHER)],
)
def golden(request) -> Golden:
    directory = GOLDEN / request.param
    config = target_config(read_json(directory / "config.json"))
    params = from_hf(WeightFiles(directory), config, "float32")
    with np.load(directory / "expected.npz") as arrays:
        return Golden(config, Transformer(config), jax.device_get(params), dict(arrays))
