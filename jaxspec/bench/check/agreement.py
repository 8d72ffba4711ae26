"""How often bfloat16 changes a token: methods that draft against autoregressive decoding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.call.options import group_options
from jaxspec.call.text.token_ids import to_ids
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.round.quick_jit import quick_jit
from jaxspec.targets.transformer import Transformer

# Bounds of the margins that positions are grouped by: the best logit minus the second.
MARGINS = (0.0, 0.01, 0.05, 0.2, 1.0, np.inf)


def measure_agreement(max_new_tokens: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Decode the demonstration's prompts on `mini` with `ar` and with a tree.

    After a first difference the texts have nothing to do with each other, so each prompt counts up
    to there. The margin at a position says how close the decision was.

    Returns:
      {"margins": [{"from", "to", "positions", "differing"}], "dtype"}.
    """
    params = jaxspec.load("mini", dtype=dtype)
    tokenizer = load_tokenizer(params.spec.tokenizer)
    positions, differing = np.zeros(len(MARGINS) - 1, int), np.zeros(len(MARGINS) - 1, int)
    for prompt in read_prompts(DEMO_PROMPTS, tokenizer):
        ids = to_ids(prompt.content, tokenizer, params.spec.target)
        options = dict(max_new_tokens=max_new_tokens, ignore_eos=True)
        plain = jaxspec.decode(params, ids, drafter="ar", **group_options(**options)).tokens
        drafted = jaxspec.decode(params, ids, budget=32, **group_options(**options)).tokens
        same = np.cumprod(np.equal(plain, drafted)).astype(bool)
        count = min(int(same.sum()) + 1, len(plain))
        cell = np.searchsorted(MARGINS, _margins(params, ids, plain)[:count], side="right") - 1
        np.add.at(positions, cell, 1)
        np.add.at(differing, cell, ~same[:count])
    return {
        "dtype": dtype,
        "margins": [
            {
                "from": low,
                "to": None if high == np.inf else high,
                "positions": int(n),
                "differing": int(d),
            }
            for low, high, n, d in zip(MARGINS, MARGINS[1:], positions, differing, strict=False)
        ],
    }


def _margins(params: Params, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Return the margin of each decision of `tokens` in one forward of the whole text."""
    text = jnp.asarray([[*prompt, *tokens]])
    model = Transformer(params.spec.target)

    @quick_jit()
    def forward(variables: Any, text: jax.Array) -> jax.Array:
        def run(model: Transformer) -> jax.Array:
            return model.logits(model(text, jnp.arange(text.shape[1])[None]).hidden)

        return model.apply(variables, method=run)

    logits = forward(params.target, text)[0, len(prompt) - 1 : -1].astype(jnp.float32)
    best = jax.lax.top_k(logits, 2)[0]
    return np.asarray(best[:, 0] - best[:, 1])
