"""What the layout of ParallelSpec and Falcon refuses; round trips are tested with Medusa's."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon import FALCON
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.format import About
from training.drafters.falcon import init_falcon

SIZES = dict(hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, ffn_size=12)
TARGET = TargetConfig(**SIZES | {"num_layers": 6}, vocab_size=19)
CONFIG = FalconConfig(
    **SIZES, feature_layers=(1, 6), target_hidden_size=8, vocab_size=19, lstm_size=5
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 10}, r"its hidden size is 10 \(made for a target of 8\), the target's 8"),
        ({"vocab_size": 20}, "its vocabulary has 20 tokens, the target's 19"),
        ({"feature_layers": (1, 7)}, r"it reads target layers \[7\], the target has layers 0 to 5"),
    ],
)
def test_another_target(change, message):
    assert FALCON.files.for_target(CONFIG, TARGET) is CONFIG
    with pytest.raises(ValueError, match=message):
        FALCON.files.for_target(dataclasses.replace(CONFIG, **change), TARGET)


def test_fields_that_are_missing(tmp_path):
    variables = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, np.float32),
        jax.eval_shape(lambda: init_falcon(CONFIG, 0)),
    )
    FALCON.files.write(tmp_path, CONFIG, variables, About(6, 64))
    hf = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match="config.json lacks 'slots'"):
        FALCON.files.config_from_hf(hf | {"jaxspec": {"feature_layers": [1]}})
    with pytest.raises(
        ValueError, match=r"jaxspec.feature_layers must be a list of target layers, not \[\]"
    ):
        FALCON.files.config_from_hf(hf | {"jaxspec": hf["jaxspec"] | {"feature_layers": []}})
