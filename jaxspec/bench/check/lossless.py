"""Check on `mini` that methods that draft give the tokens of autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.io.tokenizer import load_tokenizer

METHODS = "jetspec-best_first@32,jetspec-expand@32,eagle3-dynamic@32,default"
TEMPERATURES = (0.0, 1.0)


def check_lossless(max_new_tokens: int, methods: Sequence[Method] | None = None) -> dict[str, Any]:
    """Decode the demonstration's prompts in float32, greedily and sampled.

    Args:
      methods: to compare with `ar`; None: METHODS.

    Returns:
      {"method T": {"differing" prompts, "of", "first" token that differs (or None), and
      "acceptance", tokens per round}}.
    """
    params = jaxspec.load("mini", drafter=None, dtype="float32")
    prompts = read_prompts(DEMO_PROMPTS, load_tokenizer(params.spec.tokenizer))
    given, found = [prompt.content for prompt in prompts], {}
    for temperature in TEMPERATURES:
        options = dict(temperature=temperature, seed=1, max_new_tokens=max_new_tokens)
        plain = [jaxspec.decode(params, one, method="ar", **options) for one in given]
        for method in methods or parse_methods(METHODS, budget=0)[1:]:
            outs = [jaxspec.decode(params, one, **options, **method.options) for one in given]
            firsts = [_find_first(a.tokens, b.tokens) for a, b in zip(plain, outs, strict=True)]
            known = [first for first in firsts if first is not None]
            found[f"{method.name}, T={temperature:g}"] = {
                "differing": len(known),
                "of": len(given),
                "first": min(known, default=None),
                "acceptance": sum(out.stats.emitted - 1 for out in outs)
                / max(sum(out.stats.rounds for out in outs), 1),
            }
    return found


def _find_first(one: list[int], other: list[int]) -> int | None:
    """Return the index of the first difference; None for equal lists."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
