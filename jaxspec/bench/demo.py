"""The demonstration: held-out prompts, decoded autoregressively and with the JetSpec tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxspec.bench.measure.decodes import Run, time_decodes
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.core.params import Params

DEMO_PROMPTS = Path(__file__).with_name("demo_prompts.jsonl")
# The fastest fixed tree on two CPU cores, where every verified row costs time.
METHOD, BUDGET = "jetspec-tree/w2", 8
REPEATS = 3


def demo(
    params: Params,
    tokenizer: Any,
    *,
    max_new_tokens: int = 128,
    show: Callable[[str], None] = print,
) -> bool:
    """Decode one held-out prompt per domain with `ar` and with the JetSpec tree.

    Show texts, speeds and whether the texts agree.

    Args:
      show: called with each line.

    Returns:
      True if every text is identical to the autoregressive one.
    """
    prompts = read_prompts(DEMO_PROMPTS, tokenizer)
    methods = parse_methods(METHOD, budget=BUDGET)
    options = {"max_new_tokens": max_new_tokens}
    agreed = True
    show("Each held-out prompt is followed by the generated text in [[double brackets]].\n")
    for prompt in prompts:
        runs, _ = time_decodes(params, [prompt], methods, repeats=REPEATS, options=options)
        plain, drafted = (
            _median([run for run in runs if run.method == name]) for name in ("ar", METHOD)
        )
        identical = all(run.tokens == plain.tokens for run in runs)
        agreed &= identical
        show(f"=== {prompt.domain} " + "=" * (100 - len(prompt.domain)))
        show(f"{prompt.content}[[{tokenizer.decode(drafted.tokens)}]]")
        show(_speeds(plain, drafted))
        show(f"identical to autoregressive: {'yes' if identical else 'NO'}\n")
    return agreed


def _median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.decode_seconds)[len(runs) // 2]


def _speeds(plain: Run, drafted: Run) -> str:
    rates = [(len(run.tokens) - 1) / run.decode_seconds for run in (plain, drafted)]
    return (
        f"autoregressive {rates[0]:.1f} tokens/s, {METHOD} ({BUDGET} rows) {rates[1]:.1f} tokens/s: "
        f"{rates[1] / rates[0]:.2f} times; "
        f"mean acceptance length {(len(drafted.tokens) - 1) / max(drafted.rounds, 1):.2f} (bonus included)"
    )
