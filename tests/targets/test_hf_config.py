"""config.json of the targets: both RoPE spellings, the families' own defaults, and what is
refused.
"""

from __future__ import annotations

import math

import pytest

from jaxspec.core.config import DeltaConfig
from jaxspec.core.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
)
from jaxspec.targets.families.hf_config import target_config, target_config_to_hf

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "vocab_size": 257,
    "tie_word_embeddings": True,
}
LLAMA = QWEN3 | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "head_dim": None,
    "rms_norm_eps": 1e-5,
}
MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_qwen3_fields():
    config = target_config(QWEN3)
    assert (config.family, config.hidden_size, config.head_dim, config.ffn_size) == (
        "qwen3",
        64,
        32,
        96,
    )
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 4, 2)
    assert (config.vocab_size, config.max_positions, config.tie_embeddings, config.qk_norm) == (
        257,
        512,
        True,
        True,
    )
    assert (config.rope, config.norm_eps, config.moe) == (Rope(1e6), 1e-6, None)


def test_head_dim_defaults_differ_between_families():
    assert target_config(QWEN3 | {"head_dim": None}).head_dim == 128
    assert target_config(LLAMA).head_dim == 16
    assert target_config(MOE | {"head_dim": None}).head_dim == 16


def test_both_rope_spellings_agree():
    old = LLAMA | {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE}
    new = {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {
        "rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0}
    }
    assert target_config(old) == target_config(new)
    assert target_config(new).rope == Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert not target_config(new).qk_norm


def test_rope_base_without_any_setting_is_that_of_transformers():
    assert target_config({k: v for k, v in QWEN3.items() if k != "rope_theta"}).rope == Rope(1e4)


def test_which_layers_are_sparse():
    def dense(hf):
        layers = target_config(hf).list_layers()
        return [i for i, layer in enumerate(layers) if layer.moe is None]

    assert dense(MOE) == [] and target_config(MOE).layers == ()
    assert dense(MOE | {"mlp_only_layers": [1]}) == [1]
    assert dense(MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}) == [0, 2, 3]
    assert (
        target_config({k: v for k, v in MOE.items() if k != "norm_topk_prob"}).moe.normalize_weights
        is False
    )
    renamed = {k: v for k, v in MOE.items() if k != "num_experts"} | {"num_local_experts": 8}
    assert target_config(renamed) == target_config(MOE)


@pytest.mark.parametrize(
    "hf",
    [
        QWEN3,
        QWEN3 | {"attention_bias": True},
        LLAMA | {"rope_scaling": LLAMA3_ROPE},
        MOE | {"decoder_sparse_step": 2},
        QWEN3 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        QWEN3 | {"partial_rotary_factor": 0.5},
    ],
)
def test_written_config_reads_back(hf):
    config = target_config(hf)
    written = target_config_to_hf(config, "bfloat16")
    assert written["dtype"] == "bfloat16"
    assert target_config(written) == config
    for spelling in ("rope_parameters", "rope_theta"):
        assert target_config({k: v for k, v in written.items() if k != spelling}) == config


def test_a_window_that_is_not_used_is_no_obstacle():
    hf = QWEN3 | {"sliding_window": 64, "max_window_layers": 2}
    assert target_config(hf | {"use_sliding_window": False}) == target_config(QWEN3)
    assert target_config(
        hf | {"use_sliding_window": True, "max_window_layers": 4}
    ) == target_config(QWEN3)
    assert target_config(QWEN3 | {"layer_types": ["full_attention"] * 4}) == target_config(QWEN3)


def test_windows():
    def windows(**change):
        return [layer.window for layer in target_config(QWEN3 | change).list_layers()]

    used = {"use_sliding_window": True, "sliding_window": 64}
    assert windows(**used, max_window_layers=2) == [None, None, 64, 64]
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(**used, layer_types=types) == [64, None, 64, None]
    assert windows(layer_types=types, sliding_window=64) == [None] * 4


@pytest.mark.parametrize(
    ("entries", "scaling"),
    [
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            YarnScaling(4.0, 128, magnitude=0.1 * math.log(4) + 1),
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}
            | {"beta_fast": 16, "truncate": False},
            YarnScaling(2.0, 512, beta_fast=16.0, truncate=False),
        ),
        (
            {"type": "su", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
            | {"original_max_position_embeddings": 128},
            LongRopeScaling(
                (1.0,) * 16, (2.0,) * 16, 128, math.sqrt(1 + math.log(4) / math.log(128))
            ),
        ),
        (
            {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            ProportionalScaling(0.25),
        ),
    ],
)
def test_scalings_of_rope(entries, scaling):
    config = target_config(QWEN3 | {"rope_scaling": entries})
    assert config.rope == Rope(1e6, scaling)
    assert target_config(target_config_to_hf(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"},
            "unknown architecture 'GPTNeoXForCausalLM'",
        ),
        (
            {"architectures": ["Qwen3ForSequenceClassification"]},
            "unknown architecture 'Qwen3ForSequence",
        ),
        ({"architectures": None, "model_type": None}, "unknown architecture None"),
        ({"architectures": ["DFlashDraftModel"]}, "describes a drafter .* pass it as `drafter=`"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
            "rope type 'dynamic' is not supported",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs factor"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "'longrope' needs long_factor, original_max_position_embeddings",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "'llama3' needs low_freq_factor, high_freq_factor",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "1.5 is not above 0 and at most 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, "an odd number of the 32"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types lists 3 of 4 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "of type 'linear_attention' are not supported"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "weights quantised by bitsandbytes are not read",
        ),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        target_config(QWEN3 | change)
    assert "\n" not in str(caught.value)


def test_refused_mixtures():
    with pytest.raises(ValueError, match="num_experts_per_tok 9 exceeds num_experts 8"):
        target_config(MOE | {"num_experts_per_tok": 9})


GEMMA4 = QWEN3 | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 0,
}


def test_gemma4_layers_of_two_sizes():
    given = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    config = target_config(given)
    sliding, full = config.layers[:2]
    assert (sliding.head_dim, sliding.num_kv_heads, sliding.window) == (32, 2, 16)
    assert (full.head_dim, full.num_kv_heads, full.window, full.k_is_v) == (64, 1, None, True)
    assert full.rope == Rope(1e6, ProportionalScaling(0.25)) and sliding.rope == Rope(1e4)
    assert [group[:3] for group in config.list_cache_groups()] == [(2, 32, 32), (1, 64, 64)]
    assert config.list_cache_places() == ((0, 0), (1, 0), (0, 1), (1, 1))
    by_layer = {str(i): {"head_dim": 64, "num_key_value_heads": 1} for i in (1, 3)}
    assert target_config(given | {"per_layer_config": by_layer}) == config
    assert target_config(target_config_to_hf(config)) == config


def test_gemma4_numbers_of_layers_have_zeros_in_front():
    """transformers writes "05" for a layer of a model of more than ten."""
    sizes = {"num_hidden_layers": 12, "layer_types": None}
    sizes["per_layer_config"] = {"05": {"head_dim": 64}, "11": {"head_dim": 64}}
    config = target_config(GEMMA4 | sizes)
    assert [i for i, layer in enumerate(config.layers) if layer.head_dim == 64] == [5, 11]


def test_gemma4_layers_that_read_the_keys_of_others():
    given = GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    given |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 257}
    config = target_config(given)
    assert [layer.kv_source for layer in config.layers] == [None, None, 0, 1]
    assert [layer.ffn_size for layer in config.layers] == [96, 96, 192, 192]
    assert [group.layers for group in config.list_cache_groups()] == [(0,), (1,)]
    assert config.list_cache_places() == ((0, 0), (1, 0), (0, 0), (1, 0))
    assert target_config(target_config_to_hf(config)) == config


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"per_layer_config": {"1": {"num_attention_heads": 2}}}, "num_attention_heads"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
        ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9}, "less than"),
        ({"num_kv_shared_layers": 2, "per_layer_config": {"1": {"head_dim": 64}}}, "other heads"),
    ],
)
def test_gemma4_settings_that_are_refused(entries, named):
    with pytest.raises(ValueError, match=named):
        target_config(GEMMA4 | entries)


MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "swa_num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 257,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 5e6,
    "swa_rope_theta": 1e4,
    "partial_rotary_factor": 0.334,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_value_scale": 0.707,
}


def test_mimo_as_published_and_as_transformers_writes_it():
    config = target_config(MIMO)
    full, sliding = config.layers[:2]
    assert (full.num_kv_heads, full.sinks, full.window, full.moe) == (2, False, None, None)
    assert (sliding.num_kv_heads, sliding.sinks, sliding.window) == (4, True, 129)
    assert (full.rope.theta, sliding.rope.theta) == (5e6, 1e4)
    assert full.rope.count_rotated(192) == 64 and (full.v_scale, full.norm_eps) == (0.707, 1e-5)
    assert [group[:3] for group in config.list_cache_groups()] == [(2, 192, 128), (4, 192, 128)]
    assert target_config(target_config_to_hf(config)) == config
    with pytest.raises(ValueError, match="add_full_attention_sink_bias"):
        target_config(MIMO | {"add_full_attention_sink_bias": True})
    with pytest.raises(ValueError, match="swa_head_dim"):
        target_config(MIMO | {"swa_head_dim": 128, "head_dim": 192})


QWEN3_5 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": True,
    "text_config": {
        name: QWEN3[name] for name in QWEN3 if name not in ("architectures", "head_dim")
    }
    | {
        "model_type": "qwen3_5_text",
        "attn_output_gate": True,
        "output_gate_type": "swish",
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "rope_theta": 1e7,
    },
}


def test_qwen3_5_as_published():
    """What a file leaves out is as transformers' class has it."""
    config = target_config(QWEN3_5)
    delta = DeltaConfig(key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    assert [layer.delta for layer in config.list_layers()] == [delta, delta, delta, None]
    assert config.head_dim == 256 and config.output_gate and config.tie_embeddings
    assert config.rope == Rope(theta=1e7, share=0.25)
    assert target_config(target_config_to_hf(config)) == config


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"attn_output_gate": False}, "attn_output_gate False is not supported for Qwen3.5"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid' .* 'swish', 'silu'"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16' is not supported"),
        ({"layer_types": ["sliding_attention"] * 4}, "layers of type 'sliding_attention'"),
        ({"layer_types": ["linear_attention"] * 4}, "needs a layer of type 'full_attention'"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads 24 is not a multiple"),
    ],
)
def test_qwen3_5_settings_that_are_refused(entries, named):
    with pytest.raises(ValueError, match=named):
        target_config(QWEN3_5 | {"text_config": QWEN3_5["text_config"] | entries})
