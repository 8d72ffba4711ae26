"""Read a target from a GGUF file: its config.json, and its tensors by Hugging Face name.

llama.cpp names tensors differently, stacks a layer's experts in one tensor, and permutes the rows
of Llama's query and key projections for its own RoPE (`LlamaModel.permute` in its converter).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.io.text.gguf_tokenizer import end_ids
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.registry import families

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
# Frequencies of Llama 3's RoPE, which config.json describes by four numbers.
_FREQUENCIES = "rope_freqs.weight"
OUTPUT = "output.weight"


def family_of_gguf(file: GgufFile) -> TargetFamily:
    """Return the family that the file's architecture belongs to.

    Raises:
      ValueError: none of them.
    """
    name = file.metadata.get("general.architecture")
    found = {one.gguf: one for one in families() if one.gguf is not None}
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
    get = _Getter(file, family.gguf)
    heads, hidden = get("attention.head_count"), get("embedding_length")
    rows = file.shape("token_embd.weight")[0]
    entries = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "hidden_size": hidden,
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", get("rope.dimension_count", hidden // heads)),
        "intermediate_size": get("feed_forward_length", 1),
        "rms_norm_eps": _round_float32(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _round_float32(get("rope.freq_base", 10000.0)),
        "max_position_embeddings": get("context_length"),
        "vocab_size": rows,
        "tie_word_embeddings": OUTPUT not in file,
        "attention_bias": "blk.0.attn_q.bias" in file,
        "eos_token_id": [id for id in end_ids(file) if id < rows],
    }
    if get("expert_count", 0):
        entries |= {
            "num_experts": get("expert_count"),
            "num_experts_per_tok": get("expert_used_count"),
            "moe_intermediate_size": get("expert_feed_forward_length"),
            # llama.cpp normalises the weights of Qwen3's chosen experts always.
            "norm_topk_prob": True,
        }
    return entries | _rope_scaling(file, get)


class GgufWeights(Tensors):
    """Tensors of a GGUF file by Hugging Face name, float32, as `jaxspec.targets.weights` reads."""

    packed: frozenset[str] = frozenset()

    def __init__(self, file: GgufFile):
        self.file = file
        self._heads = {}
        family = family_of_gguf(file)
        if family.gguf_permuted:
            get = _Getter(file, family.gguf)
            heads = get("attention.head_count")
            self._heads = {"attn_q": heads, "attn_k": get("attention.head_count_kv", heads)}
        self._home: dict[str, tuple[str, int | None]] = {}
        for name in file:
            if name != _FREQUENCIES:
                self._home |= self._names(name)

    def __getitem__(self, name: str) -> np.ndarray:
        stored, expert = self._home[name]
        array, heads = self.file.part(stored, expert), self._permuted_heads(stored)
        return array if heads is None else _unpermute(array, heads)

    def row_reader(self, name: str) -> RowReader:
        stored, expert = self._home[name]
        if self._permuted_heads(stored) is not None:  # rows are elsewhere in the file
            return super().row_reader(name)
        return self.file.row_reader(stored, expert)

    def shape(self, name: str) -> tuple[int, ...]:
        stored, expert = self._home[name]
        shape = self.file.shape(stored)
        return shape if expert is None else shape[1:]

    def dtype(self, name: str) -> str:
        return "F32"

    def _permuted_heads(self, stored: str) -> int | None:
        """Return the number of heads whose rows llama.cpp has permuted; None if it has not."""
        parts = stored.split(".")
        return self._heads.get(parts[2]) if parts[0] == "blk" else None

    def _names(self, name: str) -> dict[str, tuple[str, int | None]]:
        """Return {Hugging Face name: (stored name, expert)} of a stored tensor."""
        parts = name.split(".")
        kind = parts[-1]
        if parts[0] != "blk":
            return {f"{_TOP.get(parts[0], parts[0])}.{kind}": (name, None)}
        layer = f"model.layers.{parts[1]}"
        if parts[2] in _EXPERTS:
            return {
                f"{layer}.mlp.experts.{i}.{_EXPERTS[parts[2]]}.{kind}": (name, i)
                for i in range(self.file.shape(name)[0])
            }
        return {f"{layer}.{_LAYER.get(parts[2], parts[2])}.{kind}": (name, None)}


class _Getter:
    """Read entries `<architecture>.<name>` of a file."""

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
        return value


def _rope_scaling(file: GgufFile, get: _Getter) -> dict[str, Any]:
    """Describe Llama 3's RoPE scaling, of which GGUF holds the resulting factors only.

    Between two wavelengths a and b, a factor f of wavelength w obeys 1 / f = (1 - s) / F + s with
    s = (1 / w - 1 / a) / (1 / b - 1 / a), and F beyond a. So s is linear in 1 / w, and any two
    factors between give a and b. config.json calls them `original_max_position_embeddings` divided
    by `low_freq_factor` and by `high_freq_factor`.

    Raises:
      ValueError: another kind of scaling.
    """
    kind = get("rope.scaling.type", "none")
    if kind not in ("none", ""):
        raise ValueError(f"{file.path}: RoPE scaling {kind!r} is not supported")
    if _FREQUENCIES not in file:
        return {}
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


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Undo the permutation of rows that interleaves the two halves of each head."""
    rows = array.shape[0] // heads
    return array.reshape(heads, rows // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _round_float32(value: float) -> float:
    """Return the shortest decimal that is this float32: 1e-5 instead of 9.99999974e-06."""
    return float(str(np.float32(value)))
