"""`decode` and `stream`: turn prompts into text with the loop that runs on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax

from jaxspec.builders import Builder
from jaxspec.call.arguments import check_flag, check_prompt
from jaxspec.call.finish import run_to_end
from jaxspec.call.output import Output
from jaxspec.call.probe import keep_learned, probe_session
from jaxspec.call.recheck import recheck_costs
from jaxspec.call.results import Seconds, make_outputs
from jaxspec.call.session import Session, Stop, matmul_precision, prepare
from jaxspec.call.start import start_session
from jaxspec.call.stream import stream_rounds
from jaxspec.call.text.token_ids import Prompt, Prompts, is_batch
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.core.runtime.near_miss import naming_options
from jaxspec.core.state import DecodeState
from jaxspec.policies.protocol import Policy


@naming_options
@under_own_settings
def decode(
    params: Params,
    prompt: Prompt | Prompts,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: Stop = (),
    ignore_eos: bool = False,
    min_tokens: int = 0,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    lookup: bool | None = None,
    score_temperature: float | None = None,
    policy: Policy | str | None = None,
    capacity: int | None = None,
    trace: bool = False,
    shrink: bool | None = None,
) -> Output | list[Output]:
    """Generate text. The drafter changes the speed, never the text.

    Args:
      params: from `jaxspec.load`.
      prompt: str, token ids, chat messages ([{"role", "content"}, …]), or a list of these (then the
        result is a list).
      max_new_tokens: largest number of tokens to generate (256).
      temperature: sampling temperature; 0.0 is greedy.
      top_k, top_p, min_p: filters of the sampled tokens, applied in this order (None: no filter).
      presence_penalty, frequency_penalty: subtracted from the logits of each generated token, once or
        for every time it is there; -2 to 2 (0.0).
      repetition_penalty: divides the logits of tokens in the prompt or the text where they are
        positive, and multiplies them where they are negative; above 0 (1.0).
      seed: seed of all sampling (0). The same prompt and seed give the same text; equal prompts in
        one list give independent samples.
      stop: strings or token ids that end the text, in addition to the model's EOS tokens.
      ignore_eos: do not stop at the model's EOS tokens.
      min_tokens: tokens before which nothing ends the text: EOS tokens and stop ids are not drawn,
        and stop strings do not count (0).
      method: the name of a loaded drafter, or `ar` for autoregressive decoding (None: the first
        drafter, or with the policy `auto` the one that was fastest so far).
      builder: how candidates become a tree: a value of `jaxspec.builders`, such as
        `builders.expand(width=3, fanout="top2gap")`, or its spelling, `"expand/w3/fanout=top2gap"`.
        None: the drafter's default.
      budget: rows that a round verifies, the root included (None: 32; with the policy `auto`, as
        many as suit the device). DDTree's budget M, which leaves the root out, is M + 1 here.
        `builders.static(paths)` verifies its paths instead.
      block_size: slots of a block drafter's block, the anchor included (None: as trained).
      depth: longest drafted path of drafters that draft step by step (None: the drafter's own).
      acceptance: `match` gives the text of autoregressive decoding with the same seed. `sequential`
        and `rejection` (temperature > 0) keep only its distribution.
      coupled: at temperature > 0, rank draft tokens under the noise that the target samples with,
        which accepts more of them (True; `match` only).
      lookup: blend prompt lookup into the draft, weighted by its hit rate (None: with the policy
        `auto`, where the target is on one device and the drafter gives no lookahead).
      score_temperature: divisor of the draft logits when paths are scored. Below 1 trees grow
        deeper, above 1 wider (None: the policy's, if it names one, else the drafter's own).
      policy: decides, per round, whether to draft, how many steps, and how many rows to verify; or,
        per call, the block size. See `jaxspec.policies`. `auto` measures what rounds cost, chooses
        the rows of each and stops drafting while it does not pay; see `jaxspec.call.automatic`.
        `Output.policy` holds what a policy learned, for the next call. (None: `auto`; with a
        `builder` or a `budget`, no policy: every round drafts and verifies as much as these allow.)
      capacity: rows of the key-value caches, at least what the call needs. Calls that differ only in
        their prompts and limits share programs if they share it (None: a power of two; more for
        one prompt of chat messages, because a conversation grows).
      trace: record every round in `Output.rounds`. Each round then waits for the host.
      shrink: go on with half of a batch when half of its sequences have finished, and so on. Each
        size is compiled when it is first needed, or by `jaxspec.warmup`. Tokens do not change.
        (None: in float32, once finished sequences have cost this process what compiling costs.)

    Returns:
      An `Output`, or a list of them in the order of the prompts.

    Raises:
      TypeError: a prompt or an option of the wrong type.
      ValueError: an option out of range, an empty or too long prompt, an unknown method or builder.
    """
    check_flag("trace", trace)
    if shrink is not None:
        check_flag("shrink", shrink)
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        method=method,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        acceptance=acceptance,
        coupled=coupled,
        lookup=lookup,
        score_temperature=score_temperature,
        policy=policy,
        capacity=capacity,
    )
    outputs, _ = run_session(session, trace, shrink)
    return outputs if is_batch(prompt) else outputs[0]


def run_session(
    session: Session, trace: bool = False, shrink: bool | None = False
) -> tuple[list[Output], DecodeState]:
    """Run a prepared call to its end.

    Returns:
      The outputs of its prompts, and the state after the last round, without caches if the batch
      shrank.
    """
    with matmul_precision(session):
        started = time.perf_counter()
        state, prefill = start_session(session)
        session = probe_session(session, state)
        decoding, compiled = time.perf_counter(), compilations()
        if not trace:
            session, state = recheck_costs(session, state)
        session, state, traces, shrunk = run_to_end(session, state, trace, shrink)
        seconds = Seconds(prefill, time.perf_counter() - decoding, decoding - started - prefill)
    rounds_only = not (trace or session.stop_strings or shrunk) and compilations() == compiled
    # Processes measure different times. What a policy learns from them would differ.
    rounds_only = rounds_only and jax.process_count() == 1
    outputs = make_outputs(session, state, seconds, traces, rounds_only)
    keep_learned(session, outputs, rounds_only)
    return outputs, state


@naming_options
@under_own_settings
def stream(
    params: Params,
    prompt: Prompt,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: Stop = (),
    ignore_eos: bool = False,
    min_tokens: int = 0,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    lookup: bool | None = None,
    score_temperature: float | None = None,
    policy: Policy | str | None = None,
    capacity: int | None = None,
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
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
        method=method,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        acceptance=acceptance,
        coupled=coupled,
        lookup=lookup,
        score_temperature=score_temperature,
        policy=policy,
        capacity=capacity,
    )
    return _stream(session)


def _stream(session: Session) -> Iterator[str | list[int]]:
    """Yield the texts of `stream_rounds`, or their tokens; leave empty ones out."""
    rounds = stream_rounds(session)
    while True:
        try:
            part = next(rounds)
        except StopIteration as ended:
            return ended.value
        piece = part.tokens if part.text is None else part.text
        if piece:
            yield piece
