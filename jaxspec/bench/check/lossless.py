"""Check on `mini` that methods that draft give the tokens of autoregressive decoding."""

from __future__ import annotations

from typing import Any

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.io.tokenizer import load_tokenizer

METHODS = (
    Method("jetspec-best_first@32", {"method": "jetspec", "builder": "best_first", "budget": 32}),
    Method("jetspec-expand@32", {"method": "jetspec", "builder": "expand", "budget": 32}),
    Method("eagle3-dynamic@32", {"method": "eagle3", "builder": "dynamic", "budget": 32}),
    Method("default", {"method": "jetspec"}),
)
TEMPERATURES = (0.0, 1.0)


def check_lossless(max_new_tokens: int, methods: tuple[Method, ...] = METHODS) -> dict[str, Any]:
    """Decode the demonstration's prompts in float32, greedily and sampled.

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
        for method in methods:
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
