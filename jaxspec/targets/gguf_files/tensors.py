"""Read the tensors of a GGUF file by Hugging Face name.

llama.cpp names tensors differently, stacks a layer's experts in one tensor, permutes the rows of
Llama's query and key projections for its own RoPE (`LlamaModel.permute` in its converter), adds
1 to the weights of Gemma's norms, and separates gpt-oss's gates from their factors.
"""

from __future__ import annotations

import numpy as np

from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.targets.gguf_files.config import Getter, count_layers, family_of_gguf

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
# Frequencies of RoPE, which config.json describes by a few numbers.
_FREQUENCIES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufWeights(Tensors):
    """Tensors of a GGUF file by Hugging Face name, float32, as `jaxspec.targets.weights` reads."""

    packed: frozenset[str] = frozenset()

    def __init__(self, file: GgufFile):
        self.file = file
        self._heads = {}
        self._family = family_of_gguf(file).gguf
        if self._family.permuted:
            get = Getter(file, self._family.architecture)
            heads = get("attention.head_count")
            self._heads = {"attn_q": heads, "attn_k": get("attention.head_count_kv", heads)}
        self._home: dict[str, tuple[str, int | None]] = {}
        layers = count_layers(file)
        for name in file:
            parts = name.split(".")
            # A layer beyond the last predicts further tokens.
            if name not in _FREQUENCIES and not (parts[0] == "blk" and int(parts[1]) >= layers):
                self._home |= self._names(name)

    def __getitem__(self, name: str) -> np.ndarray:
        parts = self._find_parts(name)
        if parts:
            arrays = [self.file.part(stored) for stored in parts]
            joined = np.stack([one.swapaxes(1, -1) for one in arrays], axis=-1)
            return joined.reshape(*joined.shape[:-2], -1)
        stored, expert = self._home[name]
        array, heads = self.file.part(stored, expert), self._permuted_heads(stored)
        if self._is_centred(name):
            array = array - np.float32(1)
        return array if heads is None else _unpermute(array, heads)

    def row_reader(self, name: str) -> RowReader:
        if self._find_parts(name):
            return super().row_reader(name)
        stored, expert = self._home[name]
        # Rows are elsewhere in the file, or it holds other values.
        if self._permuted_heads(stored) is not None or self._is_centred(name):
            return super().row_reader(name)
        return self.file.row_reader(stored, expert)

    def shape(self, name: str) -> tuple[int, ...]:
        stored, expert = self._home[name]
        shape = self.file.shape(stored)
        parts = self._find_parts(name)
        if parts:
            experts, *sizes = shape
            *rows, columns = sizes[::-1]
            return (experts, *rows, columns * len(parts))
        return shape if expert is None else shape[1:]

    def dtype(self, name: str) -> str:
        return "F32"

    def _is_centred(self, name: str) -> bool:
        """Whether llama.cpp has added 1 to a tensor."""
        return self._family.centred and name.endswith("norm.weight")

    def _find_parts(self, name: str) -> list[str]:
        """List the stored tensors that alternate in one of all experts; empty for any other."""
        layer, _, own = name.removeprefix("model.layers.").partition(".")
        return [f"blk.{layer}.{one}" for one in self._family.experts.get(own, ())]

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
        whole = f"{parts[2]}.{kind}"
        for joined in self._family.experts:
            stored = self._find_parts(f"{layer}.{joined}")
            if name in stored:
                found = all(one in self.file for one in stored)
                return {f"{layer}.{joined}": (name, None)} if found else {}
        if whole in self._family.layers:
            return {f"{layer}.{self._family.layers[whole]}": (name, None)}
        if parts[2] in _EXPERTS:
            return {
                f"{layer}.mlp.experts.{i}.{_EXPERTS[parts[2]]}.{kind}": (name, i)
                for i in range(self.file.shape(name)[0])
            }
        own = self._family.layers.get(parts[2]) or _LAYER.get(parts[2], parts[2])
        return {f"{layer}.{own}.{kind}": (name, None)}


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Undo the permutation of rows that interleaves the two halves of each head."""
    rows = array.shape[0] // heads
    return array.reshape(heads, rows // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
