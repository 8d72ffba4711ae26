"""Read the config.json of a target from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.text.gguf_tokenizer import end_ids
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.registry import families

# Factors of Llama 3's RoPE, which config.json describes by four numbers.
_FREQUENCIES = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
OUTPUT = "output.weight"


def family_of_gguf(file: GgufFile) -> TargetFamily:
    """Return the family that the file's architecture belongs to.

    Raises:
      ValueError: none of them.
    """
    name = file.metadata.get("general.architecture")
    found = {one.gguf.architecture: one for one in families() if one.gguf is not None}
    if name not in found:
        raise ValueError(
            f"{file.path}: GGUF architecture {name!r} is not supported (supported: "
            f"{', '.join(found)})"
        )
    return found[name]


def read_gguf_entries(file: GgufFile) -> dict[str, Any]:
    """Write the config.json of a GGUF file's model.

    Raises:
      ValueError: an unknown architecture, a missing entry, or a RoPE scaling that is not supported.
    """
    family = family_of_gguf(file)
    get = Getter(file, family.gguf.architecture)
    heads, hidden = get("attention.head_count"), get("embedding_length")
    rows = file.shape("token_embd.weight")[0]
    entries = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "hidden_size": hidden,
        "num_hidden_layers": count_layers(file),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", get("rope.dimension_count", hidden // heads)),
        "intermediate_size": get("feed_forward_length", 1),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "max_position_embeddings": get("context_length"),
        "vocab_size": rows,
        "tie_word_embeddings": OUTPUT not in file,
        "attention_bias": "blk.0.attn_q.bias" in file,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file,
        "eos_token_id": [id for id in end_ids(file) if id < rows],
    }
    return entries | _rope_scaling(file, get, family.gguf.truncate) | family.gguf.read(get)


def count_layers(file: GgufFile) -> int:
    """Return the number of a model's layers without those that predict further tokens."""
    get = Getter(file, family_of_gguf(file).gguf.architecture)
    return get("block_count") - get("nextn_predict_layers", 0)


class Getter:
    """Read entries `<architecture>.<name>` of a file; floats as their shortest decimals."""

    def __init__(self, file: GgufFile, architecture: str | None):
        self._file, self._prefix = file, architecture

    def __call__(self, name: str, default: Any = None) -> Any:
        value = self._file.metadata.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise ValueError(f"{self._file.path} lacks the entry {self._prefix}.{name!r}")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(
                    f"{self._file.path}: {self._prefix}.{name} differs between layers, "
                    "which is not supported"
                )
            value = value[0]
        return _round_float32(value) if isinstance(value, float) else value


def _rope_scaling(file: GgufFile, get: Getter, truncate: bool) -> dict[str, Any]:
    """Describe the scaling of RoPE.

    Raises:
      ValueError: a kind that is not supported.
    """
    kind = get("rope.scaling.type", "none") or "none"
    original = get("rope.scaling.original_context_length", 0)
    if _LONG in file:
        settings = {"rope_type": "longrope", "original_max_position_embeddings": original}
        settings |= {"short_factor": file[_SHORT].tolist(), "long_factor": file[_LONG].tolist()}
        magnitude = get("rope.scaling.attn_factor", 0.0)
        settings |= {"attention_factor": magnitude} if magnitude else {}
        return {"rope_scaling": settings}
    if kind == "linear":
        factor = get("rope.scaling.factor")
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn":
        settings = {"rope_type": "yarn", "factor": get("rope.scaling.factor")}
        settings |= {"original_max_position_embeddings": original} if original else {}
        for name in ("beta_fast", "beta_slow"):
            value = get(f"rope.scaling.yarn_{name}", 0.0)
            settings |= {name: value} if value else {}
        settings |= {} if truncate else {"truncate": False}
        return {"rope_scaling": settings}
    if kind != "none":
        raise ValueError(f"{file.path}: RoPE scaling {kind!r} is not supported")
    return _read_llama3(file, get) if _FREQUENCIES in file else {}


def _read_llama3(file: GgufFile, get: Getter) -> dict[str, Any]:
    """Describe Llama 3's RoPE scaling, of which GGUF holds the resulting factors only.

    Between two wavelengths a and b, a factor f of wavelength w obeys 1 / f = (1 - s) / F + s with
    s = (1 / w - 1 / a) / (1 / b - 1 / a), and F beyond a. So s is linear in 1 / w, and any two
    factors between give a and b. config.json calls them `original_max_position_embeddings` divided
    by `low_freq_factor` and by `high_freq_factor`.

    Raises:
      ValueError: the factors are of another scaling.
    """
    factors = np.asarray(file[_FREQUENCIES], np.float64)
    theta = float(get("rope.freq_base", 10000.0))
    wavelengths = 2 * np.pi * theta ** (np.arange(len(factors)) / len(factors))
    whole = float(factors.max())
    between = (factors > 1 + 1e-6) & (factors < whole * (1 - 1e-6))
    settings = {
        "rope_type": "llama3",
        "factor": _round_float32(whole),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    smooth = (1 / factors[between] - 1 / whole) / (1 - 1 / whole)
    if between.sum() == 1:  # take Llama 3's own ratio of 4 between the two wavelengths
        longest = float((wavelengths[between] * (3 * smooth + 1))[0])
        settings["original_max_position_embeddings"] = round(longest)
    elif between.any():
        slope, offset = np.polyfit(1 / wavelengths[between], smooth, 1)
        longest, shortest = -slope / offset, slope / (1 - offset)
        settings["original_max_position_embeddings"] = round(longest)
        settings["high_freq_factor"] = round(longest / shortest, 4)
    if not np.allclose(_llama3_factors(wavelengths, settings), factors, rtol=1e-4):
        raise ValueError(f"{file.path}: its RoPE factors are not those of Llama 3's scaling")
    return {} if whole == 1 else {"rope_scaling": settings}


def _llama3_factors(wavelengths: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """Compute by how much Llama 3's scaling lengthens each wavelength."""
    positions = settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    smooth = np.clip((positions / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / settings["factor"] + smooth)


def _round_float32(value: float) -> float:
    """Return the shortest decimal that is this float32: 1e-5 instead of 9.99999974e-06."""
    return float(str(np.float32(value)))
