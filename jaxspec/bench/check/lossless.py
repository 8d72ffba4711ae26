"""Check on `mini` that methods that draft give the tokens of autoregressive decoding.

On a GPU, autoregressive decoding is compared with the processor's as well: if it is wrong itself,
no other text can be judged by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

import jaxspec
from jaxspec.bench.check.shared_target import share
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer

METHODS = "jetspec-best_first@32,jetspec-expand@32,eagle3-dynamic@32,default"
TEMPERATURES = (0.0, 1.0)
# What is compared with a target that devices share, besides the methods.
ALONE = "ar on one device"
PROCESSOR = "ar on the processor"
_SHOWN = 8  # tokens of a text that differs


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
    params, given = _load_mini()
    methods = methods or parse_methods(METHODS, budget=0)[1:]
    return compare_texts(params, given, methods, max_new_tokens, mesh)


def _load_mini() -> tuple[Params, list[Any]]:
    """Load `mini` to the default device, and the demonstration's prompts."""
    params = jaxspec.load("mini", drafter=None, dtype="float32")
    prompts = read_prompts(DEMO_PROMPTS, load_tokenizer(params.spec.tokenizer))
    return params, [prompt.content for prompt in prompts]


def check_autoregressive(max_new_tokens: int, processor: jax.Device) -> dict[str, Any]:
    """Decode the demonstration's prompts by `ar` on the default device and on the processor.

    Returns:
      See `compare_texts`.
    """
    texts: list[list[list[Any]]] = []
    for device in (processor, None):
        with contextlib.nullcontext() if device is None else jax.default_device(device):
            params, given = _load_mini()
            texts.append(
                [_decode(params, given, t, max_new_tokens, {"drafter": "ar"}) for t in TEMPERATURES]
            )
    return {
        f"{PROCESSOR}, T={temperature:g}": _compare(plain, outs)
        for temperature, outs, plain in zip(TEMPERATURES, *texts, strict=True)
    }


def find_processor() -> jax.Device | None:
    """Return a device of JAX's for the processor; None if it is the default, or turned off."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


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
      {"method T": {"differing" prompts, "of", "first" token that differs (or None), "acceptance",
      tokens per round, and "texts" that differ, two lists of tokens around the first difference for
      each prompt}}.
    """
    shared, found = share(params, mesh), {}
    runs = [] if mesh is None else [(ALONE, params, {"drafter": "ar"})]
    runs += [(method.name, shared, method.options) for method in methods]
    for temperature in TEMPERATURES:
        plain = _decode(shared, prompts, temperature, max_new_tokens, {"drafter": "ar"})
        for name, model, own in runs:
            outs = _decode(model, prompts, temperature, max_new_tokens, own)
            found[f"{name}, T={temperature:g}"] = _compare(plain, outs)
    return found


def _decode(
    params: Params, prompts: Sequence[Any], temperature: float, tokens: int, own: dict[str, Any]
) -> list[Any]:
    options = dict(temperature=temperature, seed=1, max_new_tokens=tokens) | own
    return [jaxspec.decode(params, one, **group_options(**options)) for one in prompts]


def _compare(plain: Sequence[Any], outs: Sequence[Any]) -> dict[str, Any]:
    """Compare results of `decode`, prompt by prompt; see `compare_texts`."""
    pairs = [(a.tokens, b.tokens) for a, b in zip(plain, outs, strict=True)]
    firsts = [_find_first(*pair) for pair in pairs]
    known = [first for first in firsts if first is not None]
    return {
        "differing": len(known),
        "of": len(pairs),
        "first": min(known, default=None),
        "acceptance": sum(out.stats.emitted - 1 for out in outs)
        / max(sum(out.stats.rounds for out in outs), 1),
        "texts": [
            [tokens[first : first + _SHOWN] for tokens in pair]
            for first, pair in zip(firsts, pairs, strict=True)
            if first is not None
        ],
    }


def _find_first(one: list[int], other: list[int]) -> int | None:
    """Return the index of the first difference; None for equal lists."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
