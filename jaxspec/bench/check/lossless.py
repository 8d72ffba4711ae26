"""Check on `mini` that methods that draft give the tokens of autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

import jaxspec
from jaxspec.bench.check.shared_target import share
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.core.params import Params
from jaxspec.io.tokenizer import load_tokenizer

METHODS = "jetspec-best_first@32,jetspec-expand@32,eagle3-dynamic@32,default"
TEMPERATURES = (0.0, 1.0)
# What is compared with a target that devices share, besides the methods.
ALONE = "ar on one device"


def check_lossless(
    max_new_tokens: int, methods: Sequence[Method] | None = None, mesh: Mesh | None = None
) -> dict[str, Any]:
    """Decode the demonstration's prompts with `mini` in float32, greedily and sampled.

    Args:
      methods: to compare with `ar`; None: METHODS.
      mesh: devices that share the target; None: one device.

    Returns:
      See `compare_texts`.
    """
    params = jaxspec.load("mini", drafter=None, dtype="float32")
    prompts = read_prompts(DEMO_PROMPTS, load_tokenizer(params.spec.tokenizer))
    given = [prompt.content for prompt in prompts]
    methods = methods or parse_methods(METHODS, budget=0)[1:]
    return compare_texts(params, given, methods, max_new_tokens, mesh)


def compare_texts(
    params: Params,
    prompts: Sequence[Any],
    methods: Sequence[Method],
    max_new_tokens: int,
    mesh: Mesh | None = None,
) -> dict[str, Any]:
    """Compare the texts of methods with those of `ar`, at each of TEMPERATURES.

    Args:
      params: on one device.
      prompts: as `jaxspec.decode` takes each.
      mesh: devices that share the target. The texts of `ar` on one device are then compared, too.

    Returns:
      {"method T": {"differing" prompts, "of", "first" token that differs (or None), and
      "acceptance", tokens per round}}.
    """
    shared, found = share(params, mesh), {}
    runs = [] if mesh is None else [(ALONE, params, {"method": "ar"})]
    runs += [(method.name, shared, method.options) for method in methods]
    for temperature in TEMPERATURES:
        options = dict(temperature=temperature, seed=1, max_new_tokens=max_new_tokens)
        plain = [jaxspec.decode(shared, one, method="ar", **options) for one in prompts]
        for name, model, own in runs:
            outs = [jaxspec.decode(model, one, **options, **own) for one in prompts]
            firsts = [_find_first(a.tokens, b.tokens) for a, b in zip(plain, outs, strict=True)]
            known = [first for first in firsts if first is not None]
            found[f"{name}, T={temperature:g}"] = {
                "differing": len(known),
                "of": len(prompts),
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
