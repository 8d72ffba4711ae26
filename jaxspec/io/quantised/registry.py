"""Find the format of a checkpoint's weights by its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxspec.io.quantised.awq import AWQ
from jaxspec.io.quantised.compressed import COMPRESSED
from jaxspec.io.quantised.fp8 import FP8
from jaxspec.io.quantised.gptq import GPTQ
from jaxspec.io.quantised.module import Format
from jaxspec.io.quantised.mxfp4 import MXFP4

FORMATS: Mapping[str, Format] = MappingProxyType(
    {one.name: one for one in (FP8, COMPRESSED, AWQ, GPTQ, MXFP4)} | {"fbgemm_fp8": FP8}
)
_HINTS = MappingProxyType(
    {
        "bitsandbytes": "bitsandbytes quantises while it loads: load the model that it was made "
        "of, with quantize='int8' for a byte each",
    }
)


def find_format(hf: Mapping[str, Any]) -> tuple[Format, Mapping[str, Any]] | None:
    """Return the format of a config.json's weights with its settings; None if they are full.

    Settings are in `quantization_config`, or in `compression_config` of older compressed-tensors.

    Raises:
      ValueError: the format is not read; the message says what to do.
    """
    settings, older = hf.get("quantization_config"), hf.get("compression_config")
    if not settings and not older:
        return None
    settings = settings or {"quant_method": COMPRESSED.name} | older
    method = settings.get("quant_method") or "unknown"
    if method not in FORMATS:
        hint = _HINTS.get(method) or (
            "load the model that it was made of, with quantize='int8' or 'fp8' for a byte each"
        )
        raise ValueError(
            f"config.json: weights quantised by {method} are not read (read: "
            f"{', '.join(FORMATS)}): {hint}"
        )
    FORMATS[method].check(settings)
    return FORMATS[method], settings
