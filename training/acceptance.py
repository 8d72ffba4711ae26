"""Measure a drafter's acceptance during training: decode held-out prompts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.tuner.tuner import process_tuner


@dataclasses.dataclass
class EvalOptions:
    """How acceptance is measured during training.

    Attributes:
      prompts: JSON Lines of prompts that are not trained on, see
        `jaxspec.io.text.prompt_files.read_prompts`; None measures nothing.
      limit: number of prompts per domain.
      max_new_tokens: tokens of each answer.
      builder: tree builder, see `jaxspec.decode`.
      budget: rows verified per round, the root included; None is the block size.
      temperature: sampling temperature; 0 decodes greedily.
      chat: treat prompts as users' chat messages.
    """

    prompts: Path | None = None
    limit: int = 4
    max_new_tokens: int = 64
    builder: str = "chain"
    budget: int | None = None
    temperature: float = 0.0
    chat: bool = False


def count_rounds(
    bundle: Params, name: str, prompts: list[LabelledPrompt], **options
) -> dict[str, list[tuple[int, int]]]:
    """Count the tokens that rounds committed, bonus included, and the rounds of every prompt.

    Args:
      bundle: target with the drafter `name`.
      name: name of the drafter.
      prompts: decoded together, domain by domain.
      options: of `jaxspec.decode`.

    Returns:
      {domain: [(tokens, rounds) of each prompt]}.
    """
    found = {}
    for domain in dict.fromkeys(prompt.domain for prompt in prompts):
        outputs = jaxspec.decode(
            bundle,
            [p.content for p in prompts if p.domain == domain],
            drafter=name,
            tuner=process_tuner(),
            **group_options(**options),
        )
        found[domain] = [(out.stats.emitted - 1, out.stats.rounds) for out in outputs]
    return found


def pool_rounds(counts: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, float]:
    """Pool counts of `count_rounds` into tokens per round.

    Returns:
      {domain: tokens per round over all rounds of the domain}, with their mean under `mean`.
    """
    sums = {domain: np.sum(pairs, axis=0) for domain, pairs in counts.items()}
    found = {domain: float(tokens / max(rounds, 1)) for domain, (tokens, rounds) in sums.items()}
    return found | {"mean": float(np.mean(list(found.values())))}


def make_evaluate(
    target: Params, name: str, config, options: EvalOptions, complete: Callable[[dict], dict]
) -> Callable | None:
    """Make `evaluate(params) -> {"tau_<domain>": …, "tau_mean": …}` of drafter variables.

    Args:
      target: the target.
      name: name of the drafter.
      config: of the drafter.
      options: see `EvalOptions`.
      complete: params -> all variables of the drafter, with those that are not trained.

    Returns:
      The function, or None without prompts.
    """
    if options.prompts is None:
        return None
    tokenizer = load_tokenizer(target.spec.tokenizer) if target.spec.tokenizer else None
    prompts = read_prompts(options.prompts, tokenizer, limit=options.limit, chat=options.chat)
    spec = dataclasses.replace(target.spec, drafters=((name, config),))
    count = functools.partial(
        count_rounds,
        name=name,
        prompts=prompts,
        max_new_tokens=options.max_new_tokens,
        builder=options.builder,
        budget=options.budget or config.depth + 1,
        temperature=options.temperature,
    )

    def evaluate(params) -> dict[str, float]:
        found = pool_rounds(count(Params(target.target, {name: complete(params)}, spec)))
        return {f"tau_{domain}": value for domain, value in found.items()}

    return evaluate
