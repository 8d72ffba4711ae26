"""`decode` and `stream`: turn prompts into text with the loop that runs on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxspec.call.arguments import check_flag, check_messages, check_prompt
from jaxspec.call.hooks import Hooks
from jaxspec.call.options import Sampling, Speculation, Stop, names_options
from jaxspec.call.output import Output
from jaxspec.call.run import run_session
from jaxspec.call.session import Session, prepare
from jaxspec.call.stream import stream_rounds
from jaxspec.call.text.token_ids import Prompt, Prompts, is_batch
from jaxspec.core.params import Params
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.tuner.tuner import Tuner, tune


@names_options
@under_own_settings
def decode(
    params: Params,
    prompt: Prompt | Prompts,
    *,
    max_new_tokens: int = 256,
    temperature: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    drafter: str | None = None,
    budget: int | None = None,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
    capacity: int | None = None,
    template: Mapping[str, Any] | None = None,
    trace: bool = False,
    shrink: bool | None = None,
    tuner: Tuner | None = None,
) -> Output | list[Output]:
    """Generate text. The drafter changes the speed, never the text.

    Args:
      params: from `jaxspec.load`.
      prompt: str, token ids, chat messages ([{"role", "content"}, …]), or a list of these (then the
        result is a list).
      max_new_tokens: largest number of tokens to generate (256).
      temperature: divisor of the logits; 0.0 is greedy (None: that of `sampling`, else 0.0).
      seed: seed of all sampling (0). The same prompt and seed give the same text; equal prompts in
        one list give independent samples.
      stop: strings or token ids that end the text, in addition to the model's EOS tokens.
      drafter: the name of a loaded drafter, or `ar` for autoregressive decoding (None: the first
        drafter, or in float32, with the policy `auto`, the one that was fastest so far).
      budget: rows that a round verifies, the root included (None: that of `speculation`).
      sampling: filters, penalties and when a text may end, see `jaxspec.Sampling`.
      speculation: how trees are grown, verified and sized, see `jaxspec.Speculation`.
      capacity: rows of the key-value caches, at least what the call needs. Calls that differ only
        in their prompts and limits share programs if they share it (None: a power of two; more for
        one prompt of chat messages, because a conversation grows).
      template: variables of the model's chat template, for prompts that are chat messages, such as
        {"enable_thinking": False} (None: none).
      trace: record every round in `Output.rounds`. Each round then waits for the host.
      shrink: go on with half of a batch when half of its sequences have finished, and so on. Each
        size is compiled when it is first needed, or by `jaxspec.warmup`. Tokens do not change.
        (None: in float32, once finished sequences have cost this process what compiling costs, if
        the call leaves anything else open.)
      tuner: makes the choices that the call leaves open, and learns from it (None: the process's
        own). With a `builder`, a `budget` or a policy of its own a call leaves nothing open; a
        tuner that is given then still chooses how the weights lie, and when a batch shrinks.

    Returns:
      An `Output`, or a list of them in the order of the prompts.

    Raises:
      TypeError: a prompt or an option of the wrong type.
      ValueError: an option out of range, an empty or too long prompt, an unknown drafter, an option
        in two places, or a variable that the chat template does not read.
    """
    check_prompt(prompt)
    check_messages(template, prompt)
    check_flag("trace", trace)
    if shrink is not None:
        check_flag("shrink", shrink)
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop,
        drafter=drafter,
        budget=budget,
        sampling=sampling,
        speculation=speculation,
        capacity=capacity,
        template=template,
    )
    session, hooks = tune(session, tuner)
    outputs, _ = run_session(session, trace, shrink, hooks)
    return outputs if is_batch(prompt) else outputs[0]


@names_options
@under_own_settings
def stream(
    params: Params,
    prompt: Prompt,
    *,
    max_new_tokens: int = 256,
    temperature: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    drafter: str | None = None,
    budget: int | None = None,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
    capacity: int | None = None,
    template: Mapping[str, Any] | None = None,
    tuner: Tuner | None = None,
) -> Iterator[str | list[int]]:
    """Yield the text of `decode` piece by piece, after every round; options are those of `decode`.

    Pieces are strings, or lists of token ids if the model has no tokenizer. Joined, they equal
    `Output.text` or `Output.tokens`. Characters that may turn out to begin a stop string are held
    back. The generator returns the `Output`.

    Raises:
      TypeError, ValueError: see `decode`; or `prompt` is a list of prompts.
    """
    check_prompt(prompt)
    if is_batch(prompt):
        raise ValueError("stream takes one prompt: call decode for a list of them")
    check_messages(template, prompt)
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop,
        drafter=drafter,
        budget=budget,
        sampling=sampling,
        speculation=speculation,
        capacity=capacity,
        template=template,
    )
    return _stream(*tune(session, tuner))


def _stream(session: Session, hooks: Hooks) -> Iterator[str | list[int]]:
    """Yield the texts of `stream_rounds`, or their tokens; leave empty ones out."""
    rounds = stream_rounds(session, hooks)
    while True:
        try:
            part = next(rounds)
        except StopIteration as ended:
            return ended.value
        piece = part.tokens if part.text is None else part.text
        if piece:
            yield piece
