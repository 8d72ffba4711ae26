"""A tiny target with gated delta nets before and behind a layer of attention."""

import dataclasses

from jaxspec.core.config import DeltaConfig, TargetConfig, layer_of
from jaxspec.core.rope import Rope

SIZES = dict(hidden_size=16, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
_ALIKE = TargetConfig(
    **SIZES,
    family="qwen3_5_text",
    # So few tokens that some drafts of random weights are right.
    vocab_size=16,
    tie_embeddings=True,
    max_positions=512,
    rope=Rope(share=0.5),
    norm_centred=True,
    norm_wide=True,
    output_gate=True,
)
_FULL = layer_of(_ALIKE)
_DELTA = dataclasses.replace(
    _FULL, delta=DeltaConfig(key_heads=1, value_heads=2, key_dim=6, value_dim=8)
)
HYBRID = dataclasses.replace(_ALIKE, layers=(_DELTA, _FULL, _DELTA))
