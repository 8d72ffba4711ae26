"""The speculators schema of a DSpark drafter, to and from `DSparkConfig`.

It is the schema of a DFlash drafter with entries for the heads (see
`jaxspec.drafters.dflash.speculators`). `sample_from_anchor` says which slots propose. Its default
has changed between readers, and with the wrong value nearly nothing is accepted, so it is always
written, and a file without it is refused.
"""

from __future__ import annotations

from typing import Any

from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dspark.config import DSparkConfig
from jaxspec.drafters.dspark.hf_config import heads_to_hf, make_config, read_heads
from jaxspec.drafters.format import About

TYPE, ARCHITECTURE = "dspark", "DSparkSpeculator"
# What the schema's class assumes of entries that a file leaves out.
_DEFAULTS = {"markov_rank": 256}


def dspark_config(hf: dict[str, Any]) -> DSparkConfig:
    """Read the `DSparkConfig` of a config.json in the speculators schema.

    Raises:
      ValueError: a field is missing, a setting is not supported, or readers disagree about the
        default of a setting that the file leaves out.
    """
    if not isinstance(hf.get("sample_from_anchor"), bool):
        raise ValueError(
            "config.json lacks 'sample_from_anchor', and readers disagree about its default: add "
            "true (the anchor's slot proposes the first token, as in DeepSpec) or false (as in "
            "DFlash), as the drafter was trained"
        )
    return make_config(
        **speculators.read_block(hf, first_id=0),
        **read_heads(_DEFAULTS | hf, confidence=True),
        sample_from_anchor=hf["sample_from_anchor"],
    )


def dspark_config_to_hf(config: DSparkConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that speculators and vLLM read as `config`.

    Raises:
      ValueError: the target's name is unknown, or the schema cannot describe the attention.
    """
    if not describes(config):
        raise ValueError(
            "the speculators schema has no flag for full-attention layers that are causal inside "
            "the block: write this drafter in the native layout (--to dspark)"
        )
    known = about.num_layers, about.max_positions, dtype, about.provenance, about.architecture
    hf = speculators.speculators_config_to_hf(config, *known)
    return hf | {
        "architectures": [ARCHITECTURE],
        "speculators_model_type": TYPE,
        "speculators_config": hf["speculators_config"] | {"algorithm": TYPE},
        "sample_from_anchor": config.sample_from_anchor,
        **heads_to_hf(config),
    }


def describes(config: DSparkConfig) -> bool:
    """Say whether the schema can describe the drafter's attention."""
    return not config.causal or bool(config.sliding_window and all(config.sliding_window[1]))
