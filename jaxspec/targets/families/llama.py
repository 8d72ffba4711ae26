"""Llama 3: dense layers, no norms over queries and keys."""

from jaxspec.targets.families.family import TargetFamily

LLAMA = TargetFamily(
    name="llama", architecture="LlamaForCausalLM", gguf="llama", gguf_permuted=True
)
