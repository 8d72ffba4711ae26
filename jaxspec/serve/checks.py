"""Check a request and work out what its slot needs. Each error is one line that says what to do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxspec.call.arguments import check_count, check_flag, check_positive, check_seed
from jaxspec.call.text.stops import Stops, read_stops
from jaxspec.call.text.token_ids import number_sequences, to_ids
from jaxspec.core.params import Spec
from jaxspec.core.sampling.settings import MIN_TEMPERATURE, make_sampling
from jaxspec.serve.bias import check_bias
from jaxspec.serve.on_device.slot_settings import STOPS
from jaxspec.serve.requests import InvalidRequest, ServeRequest

# Bounds of a request's weight: float32 must hold its products with probabilities.
_LIGHTEST, _HEAVIEST = 1e-3, 1e3
# Fields of a request that say how to sample.
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class DraftLimits(NamedTuple):
    """What a drafter of the engine can do.

    Attributes:
      name: its name, or `ar`.
      depth: longest drafted path.
      rows: most rows of a slot.
    """

    name: str
    depth: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the engine can take.

    Attributes:
      spec: of the model.
      drafters: of the engine, the default one first; or `ar` alone.
      room: most tokens of a prompt with its new tokens.
      tokenizer: the model's, or None.
      logprobs: most alternatives of a token; 0: log-probabilities cannot be asked for.
    """

    spec: Spec
    drafters: tuple[DraftLimits, ...]
    room: int
    tokenizer: Any
    logprobs: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the drafters."""
        return tuple(drafter.name for drafter in self.drafters)


@dataclasses.dataclass(frozen=True)
class CheckedRequest:
    """A checked request.

    Attributes:
      request: as given.
      prompt: token ids.
      stop_ids, stop_strings: what ends its text.
      settings: values for `jaxspec.serve.on_device.slot_settings.write_settings`.
      reader: number of the drafter that may read its tokens, from 1: its own, or the first for
        `ar`.
    """

    request: ServeRequest
    prompt: list[int]
    stop_ids: tuple[int, ...]
    stop_strings: Stops
    settings: dict[str, Any]
    reader: int

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change its logits, so that its slot counts them."""
        return "repetition" in self.settings


def check_request(request: ServeRequest, limits: Limits) -> CheckedRequest:
    """Check a request.

    Raises:
      InvalidRequest: a field is invalid.
    """
    spec = limits.spec
    with _blame("tokens"):
        prompt = to_ids(request.tokens, limits.tokenizer, spec.target)
    with _blame("max_new_tokens"):
        # Nothing is generated for those who only ask about their prompt.
        least = 1 if request.prompt_logprobs is None else 0
        new = check_count("max_new_tokens", request.max_new_tokens, least)
        _check_room(len(prompt), new, limits)
    with _blame("min_tokens"):
        check_count("min_tokens", request.min_tokens, 0, new)
    with _blame("sequence"):
        check_count("sequence", request.sequence, 0, 2**32 - 1)
    with _blame("seed"):
        check_seed(request.seed)
    _check_flags(request)
    _check_numbers(request, limits)
    ids, strings = _check_stop(request, limits)
    with _blame("logit_bias"):
        bias = check_bias(request.logit_bias, spec.target.vocab_size)
    index = _find_drafter(request, limits)
    # Who asks about a prompt seldom wants many tokens: for them, no drafter reads it.
    asks = request.prompt_logprobs is not None
    drafts = request.drafter != "ar" and limits.names != ("ar",) and not asks
    first = int(number_sequences([prompt])[0])
    settings = {
        "seed": int(request.seed),
        "sequence": (first + request.sequence) % 2**32,
        "deepest": limits.drafters[index].depth if drafts else 0,
        "high": limits.drafters[index].rows if drafts else 1,
        "weight": request.weight,
        "bias": bias,
        **_sampling(request),
    }
    return CheckedRequest(request, prompt, ids, strings, settings, reader=1 + index)


def assign_drafter(accepted: CheckedRequest, reader: int, limits: Limits) -> CheckedRequest:
    """Let another drafter draft for a request that named none.

    Args:
      reader: number of the drafter, from 1.
    """
    own = limits.drafters[reader - 1]
    settings = accepted.settings | {"deepest": own.depth, "high": own.rows}
    return dataclasses.replace(accepted, settings=settings, reader=reader)


@contextlib.contextmanager
def _blame(field: str) -> Iterator[None]:
    """Turn errors into those of a field."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(field, str(error)) from None


def _check_room(prompt: int, new: int, limits: Limits) -> None:
    if prompt + new > limits.room:
        raise ValueError(
            f"prompt of {prompt} tokens and max_new_tokens={new} exceed the {limits.room} tokens "
            "of a slot: shorten one of them"
        )


def _check_flags(request: ServeRequest) -> None:
    for name in ("ignore_eos", "trace", "adapt"):
        with _blame(name):
            check_flag(name, getattr(request, name))


def _check_numbers(request: ServeRequest, limits: Limits) -> None:
    with _blame("weight"):
        if not _LIGHTEST <= check_positive("weight", request.weight) <= _HEAVIEST:
            raise ValueError(
                f"weight is {request.weight}: give a number from {_LIGHTEST:g} to {_HEAVIEST:g}"
            )
    for name in ("logprobs", "prompt_logprobs"):
        with _blame(name):
            if (count := getattr(request, name)) is not None:
                if not limits.logprobs:
                    raise ValueError(f"{name} are off: make the engine with max_logprobs")
                check_count(name, count, 0, limits.logprobs)
    with _blame("deadline"):
        if request.deadline is not None:
            check_positive("deadline", request.deadline)


def _check_stop(request: ServeRequest, limits: Limits) -> tuple[tuple[int, ...], Stops]:
    """Return the stop ids, the model's own included, and the stop strings."""
    spec = limits.spec
    with _blame("stop"):
        vocabulary, least = spec.target.vocab_size, request.min_tokens
        ids, strings = read_stops(request.stop, vocabulary, limits.tokenizer, least)
        ids = tuple(dict.fromkeys(ids + (() if request.ignore_eos else spec.eos)))
        if len(ids) > STOPS:
            raise ValueError(f"{len(ids)} stop ids, the model's own included: give at most {STOPS}")
    return ids, strings


def _find_drafter(request: ServeRequest, limits: Limits) -> int:
    """Return the index of the request's drafter; 0 for `ar`."""
    if request.drafter in (None, "ar"):
        return 0
    if request.drafter not in limits.names:
        names = ", ".join(map(repr, limits.names))
        raise InvalidRequest(
            "drafter", f"no drafter {request.drafter!r} here: give {names} or 'ar'"
        )
    return limits.names.index(request.drafter)


def _sampling(request: ServeRequest) -> dict[str, Any]:
    """Return the columns of the sampling settings, checked."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    for name, value in given.items():
        with _blame(name):
            make_sampling(**{name: value})
    spec, values = make_sampling(**given)
    penalties = {} if values.penalties is None else values.penalties._asdict()
    greedy = spec.greedy or float(values.temperature) < MIN_TEMPERATURE
    return {
        "temperature": 0.0 if greedy else values.temperature,
        "top_k": values.top_k if spec.top_k else 0,
        "top_p": values.top_p if spec.top_p else 1.0,
        "min_p": values.min_p if spec.min_p else 0.0,
        **penalties,
    }
