"""The types of a model's layers: `layer_types` in config.json, and what older files say."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.targets.families.hf_fields import integer

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def read_types(
    hf: dict[str, Any],
    default: list[str] | None = None,
    supported: tuple[str, ...] = (FULL, SLIDING),
) -> list[str]:
    """Read the type of every layer.

    Args:
      default: of a file that does not state them (default: full attention everywhere).
      supported: types that the family may have.

    Raises:
      ValueError: a type is not supported, or there are not as many types as layers.
    """
    count = integer(hf, "num_hidden_layers")
    types = list(hf.get("layer_types") or default or [FULL] * count)
    unknown = sorted(set(types) - set(supported))
    if unknown:
        raise ValueError(
            f"config.json: layers of type {unknown[0]!r} are not supported (supported: "
            f"{', '.join(map(repr, supported))})"
        )
    if len(types) != count:
        raise ValueError(f"config.json: layer_types lists {len(types)} of {count} layers")
    return types


def read_windows(hf: dict[str, Any], types: list[str]) -> list[dict[str, Any]]:
    """Read the window of every layer: changes of its `LayerConfig`, empty if none slides."""
    if SLIDING not in types:
        return []
    window = integer(hf, "sliding_window")
    return [{"window": window if kind == SLIDING else None} for kind in types]


def write_windows(config: TargetConfig) -> dict[str, Any]:
    """Write the entries that `read_types` and `read_windows` read, empty if no layer slides."""
    windows = [layer.window for layer in config.list_layers()]
    found = {window for window in windows if window is not None}
    if not found:
        return {}
    return {
        "layer_types": [FULL if window is None else SLIDING for window in windows],
        "sliding_window": found.pop(),
        "use_sliding_window": True,
    }
