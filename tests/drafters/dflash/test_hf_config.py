"""config.json of block drafters in the published layouts."""

from __future__ import annotations

import dataclasses
import json

import pytest
from golden_data import records

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.hf_config import (
    default_feature_layers,
    drafter_config,
    drafter_config_to_hf,
)
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import check_fits
from jaxspec.drafters.registry import default_builder

# z-lab/Qwen3-8B-DFlash-b16, as published.
DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_target_layers": 36,
    "block_size": 16,
    "layer_types": ["full_attention"] * 5,
    "sliding_window": None,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
QWEN3_8B = TargetConfig(
    hidden_size=4096,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=12288,
    vocab_size=151936,
)


def with_own(**changes):
    return DFLASH | {"dflash_config": DFLASH["dflash_config"] | changes}


def test_the_builder_of_its_calls_is_kept():
    """What a drafter was made for: JetSpec's files may name its trees seven wide."""
    config = dataclasses.replace(drafter_config(DFLASH), causal=True, builder="expand/w7")
    assert default_builder(config) == "expand/w7"
    written = drafter_config_to_hf(config, About(36, 40960))
    assert drafter_config(json.loads(json.dumps(written))) == config
    plain = dataclasses.replace(config, builder="")
    assert default_builder(plain) == "best_first"
    assert "builder" not in drafter_config_to_hf(plain, About(36, 40960))["jaxspec"]
    with pytest.raises(ValueError, match="jaxspec.builder is 7"):
        drafter_config(written | {"jaxspec": {"builder": 7}})


def test_published_dflash():
    config = drafter_config(DFLASH)
    assert (config.block_size, config.depth, config.mask_token_id) == (16, 15, 151669)
    assert (config.feature_layers, config.causal, config.sliding_window) == (
        (1, 9, 17, 25, 33),
        False,
        None,
    )
    assert (config.target_hidden_size, config.vocab_size, config.qk_norm) == (4096, 151936, True)
    check_fits(config, QWEN3_8B)


@pytest.mark.parametrize("name", ["QwenDFlashDraftModel", "DFlashQwen3ForCausalLM"])
def test_exporters_other_names(name):
    hf = with_own(projector_type="dflash") | {"architectures": [name], "model_type": None}
    assert drafter_config({k: v for k, v in hf.items() if v}) == drafter_config(DFLASH)


@pytest.mark.parametrize("flag", ["causal_head", "causal"])
def test_jetspec_head(flag):
    assert drafter_config(with_own(**{flag: True})) == dataclasses.replace(
        drafter_config(DFLASH), causal=True
    )


def test_block_size_and_rope_in_their_newer_places():
    hf = {k: v for k, v in with_own(block_size=16).items() if k not in ("block_size", "rope_theta")}
    hf["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000000}
    assert drafter_config(hf) == drafter_config(DFLASH)


def test_sliding_windows():
    kinds = ["sliding_attention"] * 4 + ["full_attention"]
    by_layer = drafter_config(DFLASH | {"layer_types": kinds, "sliding_window": 2048})
    assert by_layer.sliding_window == (2048, (True, True, True, True, False))
    flagged = {
        k: v for k, v in with_own(use_swa=True, swa_window_size=4096).items() if k != "layer_types"
    }
    assert drafter_config(flagged).sliding_window == (4096, (True,) * 5)
    # transformers writes layer_types by itself, all full attention: that is not what such a drafter
    # was trained with.
    assert drafter_config(with_own(use_swa=True, swa_window_size=4096)).sliding_window == (
        4096,
        (True,) * 5,
    )
    assert drafter_config(with_own(layer_types=kinds, sliding_window=2048)) == by_layer


def test_default_feature_layers_are_those_of_the_reference():
    table = records("dflash", "target_layer_ids.json")
    for key, layers in table.items():
        target_layers, count = map(int, key.split(","))
        assert default_feature_layers(target_layers, count) == tuple(layers), key
    absent = with_own(target_layer_ids=None)
    assert drafter_config(absent).feature_layers == (1, 9, 17, 25, 33)


@pytest.mark.parametrize(
    "changes", [{}, {"causal": True}, {"sliding_window": (64, (True, False, True, True, False))}]
)
def test_written_config_reads_back(changes):
    config = dataclasses.replace(drafter_config(DFLASH), **changes)
    written = drafter_config_to_hf(config, About(36, 40960), "bfloat16")
    assert drafter_config(json.loads(json.dumps(written))) == config
    assert (
        written["dflash_config"]["causal"]
        == written["dflash_config"]["causal_head"]
        == config.causal
    )


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        (
            DFLASH | {"architectures": ["DFlash2DraftModel"]},
            "unknown drafter architecture 'DFlash2DraftModel'",
        ),
        (
            DFLASH | {"architectures": ["Qwen3ForCausalLM"]},
            "unknown drafter architecture 'Qwen3ForCausalLM'",
        ),
        (with_own(projector_type="domino"), "dflash_config.projector_type = 'domino' is not"),
        (DFLASH | {"block_size": None}, "lacks 'block_size'"),
        (DFLASH | {"block_size": 1}, "block_size counts the anchor"),
        (with_own(mask_token_id=None), "mask_token_id must be a token id, not None"),
        (
            with_own(target_layer_ids=[1, 36]),
            r"target_layer_ids must be layers 0 to 35, not \[1, 36\]",
        ),
        (with_own(target_layer_ids=[]), "target_layer_ids must be layers"),
        (with_own(causal=True, causal_head=False), "causal_head and dflash_config.causal disagree"),
        (with_own(attention_sink_bias=True), "attention_sink_bias is not supported"),
        (DFLASH | {"attention_sink_bias": True}, "attention_sink_bias is not supported"),
        (DFLASH | {"layer_types": ["full_attention"]}, "layer_types must name"),
        (DFLASH | {"layer_types": ["sliding_attention"] * 5}, "lacks 'sliding_window'"),
        (DFLASH | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "type 'dynamic'"),
    ],
)
def test_what_is_refused(hf, message):
    with pytest.raises(ValueError, match=message):
        drafter_config(hf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 2560}, "its hidden size is 4096 .*, the target's 2560"),
        (
            {"vocab_size": 128256},
            "151936 tokens, the target's 128256; its mask token 151669 is outside",
        ),
        ({"num_layers": 30}, r"reads target layers \[33\], the target has layers 0 to 29"),
    ],
)
def test_a_drafter_for_another_target(change, message):
    with pytest.raises(
        ValueError, match=f"does not fit the target: .*{message}.*trained for this target"
    ):
        check_fits(drafter_config(DFLASH), dataclasses.replace(QWEN3_8B, **change))
