"""What a serving engine takes and returns: requests, updates, and a full queue."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from jaxspec.call.output import TracedRound

Finish = Literal["stop", "length", "abort", "deadline", "error"]


@dataclasses.dataclass(frozen=True)
class ServeRequest:
    """One text to generate.

    Its tokens are those of `jaxspec.decode(params, tokens, …)` with the same settings, whatever
    else the engine runs.

    Attributes:
      tokens: ids of the prompt.
      max_new_tokens: largest number of tokens to generate; 0: the prompt is read, and no more.
      temperature, top_k, top_p, min_p, seed: as in `jaxspec.decode`.
      presence_penalty, frequency_penalty, repetition_penalty: as in `jaxspec.decode`.
      sequence: which of several samples of this prompt, from 0; a list of equal prompts that
        `jaxspec.decode` gets is numbered like this.
      stop: strings and token ids that end the text, in addition to the model's EOS tokens.
      ignore_eos: do not stop at the model's EOS tokens.
      min_tokens: tokens before which nothing ends the text, at most `max_new_tokens`.
      drafter: `ar`, or the name of one of the engine's drafters; None: the first of them. It
        changes no token.
      weight: how much a token of this request counts when rows are shared, 0.001 to 1000.
      deadline: seconds after `submit` at which the request ends with what it has; None: never.
      trace: return the draft tree of each round, one round per update.
      logit_bias: token ids and what is added to their logits before penalties and filters, -100 to
        100; at most 64. `jaxspec.decode` has no such argument.
      logprobs: how many alternatives of each token to return with its log-probability; None: not
        even that.
      prompt_logprobs: the same for each token of the prompt after the first. The whole prompt is
        read then, though a slot may hold a part of it, and the tokens after it are not drafted.
      adapt: whether a drafter may learn from it, if the engine has one that learns.
    """

    tokens: tuple[int, ...]
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    sequence: int = 0
    stop: tuple[str | int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    drafter: str | None = None
    weight: float = 1.0
    deadline: float | None = None
    trace: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    adapt: bool = True


class TokenLogprob(NamedTuple):
    """How likely the target found a token: at temperature 1, before biases, penalties and filters.

    Attributes:
      logprob: its log-probability, in nats.
      top: the likeliest tokens at its place, best first: ids and log-probabilities.
      rank: its place among all tokens, by likelihood; the likeliest one has 1.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int


@dataclasses.dataclass(frozen=True)
class Update:
    """What one visit to the device changed for one request.

    Attributes:
      id: of the request, from `Engine.submit`.
      tokens: new token ids; together they are those of `Output.tokens`.
      drafted: per token, whether it is an accepted draft token; else it is the target's own.
      text: new text; together they are `Output.text`. Characters that may turn out to begin a stop
        string are held back. None without a tokenizer.
      finish: why the request ended, None while it runs; `error` if the model computed values for it
        that are not finite. No update follows one with `finish`.
      rounds: rounds that the tokens come from.
      tree: the round, if the request asks for `trace` and a round was run, see `TracedRound`.
      drafts, draft_tokens: how many of these rounds verified a draft, and how many tokens of drafts
        they verified in all.
      logprobs: of each new token, if the request asks for them.
      prompt_logprobs: of each token of the prompt but the first, if the request asks for them; None
        in all updates but one, which precedes those with tokens. It also precedes all tokens of
        requests that were submitted later for the same prompt.
    """

    id: int
    tokens: tuple[int, ...] = ()
    drafted: tuple[bool, ...] = ()
    text: str | None = None
    finish: Finish | None = None
    rounds: int = 0
    tree: TracedRound | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    drafts: int = 0
    draft_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


class InvalidRequest(ValueError):
    """A request that the engine cannot take; one line says what to do.

    Attributes:
      field: of `ServeRequest`, the one to change.
    """

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


class QueueFull(Exception):
    """The engine's queue is full.

    Attributes:
      retry_after: seconds after which a place is likely to be free.
    """

    def __init__(self, retry_after: float):
        super().__init__(f"the queue is full: try again in {retry_after:.0f} s")
        self.retry_after = retry_after
