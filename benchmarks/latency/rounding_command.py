"""`python -m benchmarks rounding`: how many tokens narrower weights and caches change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

if TYPE_CHECKING:
    from jaxspec.core.params import Params

EXAMPLE = "smollm2-135m --limit 10 --max-new-tokens 64"
VARIANTS = {
    "cache in fp8": {"cache_dtype": "fp8"},
    "weights in int8": {"quantize": "int8"},
    "weights in fp8": {"quantize": "fp8"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    options.add_name(parser)
    options.add_dtype(parser)
    bench_prompts.add_prompts(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    import jaxspec
    from jaxspec.bench.report.table import Column, Table
    from jaxspec.call.text.token_ids import to_ids

    def load(**how: str) -> Params:
        return jaxspec.load(arguments.model, drafter="ar", dtype=arguments.dtype, **how)

    full = load()
    prompts = [
        to_ids(one.content, full.tokenizer, full.spec.target)
        for one in bench_prompts.read_prompts(arguments, full.tokenizer)
    ]
    texts = _decode(full, prompts, arguments.max_new_tokens)
    records = []
    for name, how in VARIANTS.items():
        values.show_progress(name)
        records.append({"variant": name, **compare(load(**how), prompts, texts)})
    table = Table(
        (
            Column("variant"),
            Column("equal texts", align="right"),
            Column("tokens before the first difference, median", align="right"),
            Column("other choices", "{:.2%}".format, align="right"),
        ),
        [
            (
                one["variant"],
                f"{one['equal']} of {len(prompts)}",
                one["first_difference"],
                one["other_choices"],
            )
            for one in records
        ],
    )
    settings = {"model": arguments.model, "prompts": len(prompts), "dtype": str(full.dtype)}
    return settings | {"tokens": sum(map(len, texts)), "variants": records}, table.to_text()


def compare(
    params: Params, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Compare a model's greedy texts, and its choice after every prefix of the texts given.

    Args:
      params: the rounded model.
      prompts: token ids.
      texts: greedy texts of the full model, ids.

    Returns:
      `equal`, number of equal texts; `first_difference`, median of the tokens before the first
      difference, equal texts with all of theirs; `other_choices`, share of the texts' tokens that
      the rounded model would not choose after the same tokens.
    """
    import numpy as np

    own = _decode(params, prompts, max(map(len, texts)))
    before = [
        next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), len(a))
        for a, b in zip(texts, own, strict=True)
    ]
    predict = _make_predictor(params)
    others = 0
    for prompt, text in zip(prompts, texts, strict=True):
        found = predict([*prompt, *text])[len(prompt) - 1 : -1]
        others += int((found != np.asarray(text)).sum())
    return {
        "equal": sum(a == b for a, b in zip(texts, own, strict=True)),
        "first_difference": float(np.median(before)),
        "other_choices": others / sum(map(len, texts)),
    }


def _decode(params: Params, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    import jaxspec

    return [
        list(jaxspec.decode(params, list(ids), drafter="ar", max_new_tokens=most).tokens)
        for ids in prompts
    ]


def _make_predictor(params: Params) -> Callable[[Sequence[int]], Any]:
    """Return a function: token ids -> the most probable next one after each."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxspec.targets.transformer import Transformer

    model = Transformer(params.spec.target)

    @jax.jit
    def predict(variables: Any, tokens: jax.Array) -> jax.Array:
        hidden = model.apply(variables, tokens, jnp.arange(tokens.shape[1])[None]).hidden
        return model.apply(variables, hidden, method="logits")[0].argmax(-1)

    def padded(ids: Sequence[int]) -> np.ndarray:
        # Of a few sizes, so that few programs are compiled; no token sees those after it.
        tokens = np.zeros((1, -(-len(ids) // 128) * 128), np.int32)
        tokens[0, : len(ids)] = ids
        return np.asarray(predict(params.target, tokens))[: len(ids)]

    return padded
