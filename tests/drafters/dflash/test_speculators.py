"""config.json in the speculators schema."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jaxspec.drafters.dflash.hf_config import drafter_config, drafter_config_to_hf
from jaxspec.drafters.dflash.speculators import speculators_config, speculators_config_to_hf
from jaxspec.drafters.format import About
from jaxspec.io.weights.provenance import Provenance

LAYER = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "layer_types": ["full_attention"] * 5,
}
# A drafter of Qwen3-8B as the schema describes it.
DFLASH = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "speculators_version": "0.5.0",
    "draft_vocab_size": 151936,
    "target_hidden_size": None,
    "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
    "mask_token_id": 151669,
    "block_size": 16,
    "sample_from_anchor": False,
    "sliding_window_non_causal": False,
    "transformer_layer_config": LAYER,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 15}],
        "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]},
    },
}
QWEN = Provenance("Qwen/Qwen3-8B", "a" * 40, "b" * 64, "c" * 64)
ABOUT = About(36, 40960, QWEN, "Qwen3ForCausalLM")
SLIDING = ["sliding_attention"] * 5


def with_layer(**changes):
    return {"transformer_layer_config": LAYER | changes}


def written(config):
    return json.loads(json.dumps(speculators_config_to_hf(config, ABOUT, "bfloat16")))


def test_it_is_the_native_drafter_with_shifted_ids():
    native = {name: value for name, value in LAYER.items() if name != "model_type"}
    native |= {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_target_layers": 36,
        "block_size": 16,
    }
    native["dflash_config"] = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
    assert speculators_config(DFLASH) == drafter_config(native)


def test_full_attention_sees_the_whole_block_whatever_the_flag_says():
    for flag in (True, False, None):
        assert speculators_config(DFLASH | {"sliding_window_non_causal": flag}).causal is False


@pytest.mark.parametrize("non_causal", [True, False])
def test_sliding_layers_follow_the_flag(non_causal):
    hf = (
        DFLASH
        | with_layer(layer_types=SLIDING, sliding_window=2048)
        | {"sliding_window_non_causal": non_causal}
    )
    config = speculators_config(hf)
    assert config.causal is not non_causal and config.sliding_window == (2048, (True,) * 5)
    assert written(config)["sliding_window_non_causal"] is non_causal
    assert speculators_config(written(config)) == config


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"score_temperature": (0.25, 0.5)},
        {"block_size": 8},
        {"sliding_window": (64, (True, False, True, True, False))},
        {"draft_vocab_size": 32000},
    ],
)
def test_written_config_reads_back(changes):
    config = dataclasses.replace(speculators_config(DFLASH), **changes)
    hf = written(config)
    assert speculators_config(hf) == config
    # vLLM takes an absent flag for true and the schema's class for false; this drafter is
    # bidirectional for both.
    assert hf["sliding_window_non_causal"] is True and hf["sample_from_anchor"] is False
    assert (
        hf["aux_hidden_state_layer_ids"]
        == [layer + 1 for layer in config.feature_layers]
        == [2, 10, 18, 26, 34]
    )
    assert (
        hf["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
        == config.block_size - 1
    )
    assert hf["speculators_config"]["verifier"] == DFLASH["speculators_config"]["verifier"]
    assert hf["draft_vocab_size"] == changes.get("draft_vocab_size", 151936)
    assert hf["transformer_layer_config"]["vocab_size"] == 151936


def test_both_layouts_record_the_target():
    config = speculators_config(DFLASH)
    for hf in (written(config), drafter_config_to_hf(config, ABOUT, "bfloat16")):
        assert hf["jaxspec"] == {
            "feature_convention": "outputs of target layers, 0-based",
            "feature_layers": [1, 9, 17, 25, 33],
            "num_target_layers": 36,
            "score_temperature": [1.0, 1.0],
            "target": "Qwen/Qwen3-8B",
            "target_revision": "a" * 40,
            "tokenizer_sha256": "b" * 64,
            "chat_template_sha256": "c" * 64,
        }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"speculators_model_type": "eagle3"},
            "speculators drafters of type 'eagle3' are not supported",
        ),
        ({"speculators_model_type": "dspark"}, "type 'dspark'"),
        (
            {"draft_vocab_size": 151937},
            "draft_vocab_size is 151937, more than the target's 151936 tokens",
        ),
        ({"draft_vocab_size": 0}, "draft_vocab_size must be a positive integer, not 0"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids must be target layers"),
        ({"aux_hidden_state_layer_ids": [0, 10]}, r"1 or higher .*not \[0, 10\]"),
        ({"mask_token_id": None}, "mask_token_id must be a token id"),
        ({"block_size": 1}, "block_size counts the anchor"),
        ({"sample_from_anchor": True}, "sample_from_anchor = True is not supported"),
        ({"projector_type": "domino"}, "projector_type = 'domino' is not supported"),
        ({"shift_label": True}, "shift_label"),
        (with_layer(model_type="llama"), "must be of model_type 'qwen3', not 'llama'"),
        ({"transformer_layer_config": None}, "must be of model_type 'qwen3', not None"),
        (with_layer(layer_types=SLIDING), "lacks 'sliding_window'"),
        (
            with_layer(layer_types=[*SLIDING[:4], "full_attention"], sliding_window=8),
            "causal sliding layers together",
        ),
        (with_layer(layer_types=SLIDING[:2]), "layer_types must name"),
        (
            with_layer(layer_types=SLIDING, sliding_window=8) | {"sliding_window_non_causal": None},
            "lacks 'sliding_window_non_causal', and readers disagree",
        ),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        speculators_config(DFLASH | change)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_written():
    config = speculators_config(DFLASH)
    with pytest.raises(
        ValueError, match="no flag for full-attention layers that are causal .*--to jetspec"
    ):
        written(dataclasses.replace(config, causal=True))
    with pytest.raises(ValueError, match="names the target.*give --target"):
        speculators_config_to_hf(config, About(36, 40960))
