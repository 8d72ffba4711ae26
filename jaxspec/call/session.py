"""Prepare a call of `decode`: check its options, pad its prompts, and run the prefill.

Code that runs rounds itself, to time, draw or record them, also begins here. It calls `prepare` and
`run_prefill`, then `jaxspec.round.loop.run`, all within `matmul_precision`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call import arguments
from jaxspec.call.call_policy import leaves_open, start_policy
from jaxspec.call.options import Sampling, Speculation, Stop, fill_records, names_options
from jaxspec.call.prefill import prefill
from jaxspec.call.resolve import resolve_config
from jaxspec.call.text.stops import Stops, read_stops
from jaxspec.call.text.token_ids import (
    Prompt,
    Prompts,
    is_batch,
    is_chat,
    number_sequences,
    pad,
    to_ids,
)
from jaxspec.core.mesh import using
from jaxspec.core.params import Params, Spec, check_params
from jaxspec.core.sampling.settings import SamplingValues
from jaxspec.core.state import DecodeState, Request
from jaxspec.io.program_cache import keep_programs
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.round.sizes import check_capacity, choose_capacity, room_for, round_up


class OpenChoices(NamedTuple):
    """What a caller left open, besides whether to draft and how many rows each round verifies.

    Attributes:
      drafter: which drafter.
      budget: the most rows of a round.
      lookup: whether to mix prompt lookup in.
    """

    drafter: bool
    budget: bool
    lookup: bool


class Given(NamedTuple):
    """What a caller gave that other choices must know.

    Attributes:
      resolve: see `resolve_config`, for a drafter's name as keyword.
      temperature: of sampling.
      capacity: rows of the caches, or None.
      grows: whether the prompt is a conversation.
    """

    resolve: Callable[..., tuple[DecodeConfig, SamplingValues]]
    temperature: float
    capacity: int | None
    grows: bool


@dataclasses.dataclass(frozen=True)
class Session:
    """A prepared call of B prompts.

    Attributes:
      params: the model and its drafters, in the layout that a tuner chose.
      config: static choices, which decide what is compiled.
      request: arrays that every round reads.
      tokens: int32 [B, S], the prompts, padded to the capacity.
      lengths: int32 [B], tokens of each prompt.
      capacity: rows S of the key-value caches.
      max_tokens: new tokens that the state has room for.
      stop_strings: strings that the host looks for in the text.
      tokenizer: the model's tokenizer, or None if it has none.
      policy: the policy with its first state, or None if it has nothing to decide.
      given: what the caller gave.
      open: what the caller left open; None: nothing. Until a tuner chooses, see `choose`, it is the
        first drafter without lookup, whose rounds verify as many rows as the budget says.
      costs_file: where a tuner keeps the costs of its rounds; None: it keeps none.
    """

    params: Params
    config: DecodeConfig
    request: Request
    tokens: np.ndarray
    lengths: np.ndarray
    capacity: int
    max_tokens: int
    stop_strings: Stops
    tokenizer: Any
    policy: Policy | None
    given: Given
    open: OpenChoices | None = None
    costs_file: Path | None = None

    @property
    def automatic(self) -> bool:
        """Whether the policy is a tuner's, which probes and learns."""
        return self.costs_file is not None

    def resolve(self, drafter: str) -> DecodeConfig:
        """Return the static choices of this call with another drafter, and without a policy."""
        return self.given.resolve(drafter=drafter)[0]

    def prompt(self, index: int) -> list[int]:
        """Return the token ids of prompt `index`."""
        return self.tokens[index, : self.lengths[index]].tolist()


@names_options
def prepare(
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
) -> Session:
    """Check the arguments of `jaxspec.decode` and make the session; nothing runs yet.

    Unlike there, a `template` may be given with prompts that are no messages, and changes nothing.

    Raises:
      TypeError, ValueError: see `jaxspec.decode`.
    """
    check_params(params)
    arguments.check_prompt(prompt)
    keep_programs()
    spec = params.spec
    max_new_tokens = arguments.check_count("max_new_tokens", max_new_tokens)
    seed = arguments.check_seed(seed)
    sampling, speculation = fill_records(temperature, budget, sampling, speculation)
    arguments.check_count("min_tokens", sampling.min_tokens, 0, max_new_tokens)
    policy, open = speculation.policy, None
    if leaves_open(policy, speculation.fixed):
        open = OpenChoices(drafter is None, speculation.budget is None, speculation.lookup is None)
    tokenizer = params.tokenizer
    arguments.check_template(template, tokenizer)
    encode = functools.partial(to_ids, tokenizer=tokenizer, config=spec.target, template=template)
    ids = _token_ids(spec, prompt, encode, max_new_tokens)
    resolve = functools.partial(resolve_config, spec, sampling=sampling, speculation=speculation)
    config, values = resolve(drafter=drafter)
    least = sampling.min_tokens
    stop_ids, strings = read_stops(stop, spec.target.vocab_size, tokenizer, least)
    stop_ids += () if sampling.ignore_eos else spec.eos
    if capacity is not None:
        capacity = arguments.check_count("capacity", capacity)
    tokens, lengths = pad(ids, max(map(len, ids)))
    session = Session(
        params,
        config,
        _make_request(ids, max_new_tokens, least, stop_ids, seed, values),
        tokens,
        lengths,
        0,
        room_for(max_new_tokens),
        strings,
        tokenizer,
        None,
        Given(resolve, float(sampling.temperature or 0), capacity, is_chat(prompt)),
        open,
    )
    return choose(session, params, config, policy if isinstance(policy, Policy) else None)


def choose(
    session: Session, params: Params, config: DecodeConfig, policy: Policy | None
) -> Session:
    """Return the session with other choices, and caches and a state of the policy that suit them.

    Args:
      params: the model, in any layout.
      config: static choices.
      policy: the policy that they name, or None.

    Raises:
      ValueError: the choices do not suit one another, or the capacity is too small for them.
    """
    plan, given, batch = make_plan(params.spec, config), session.given, len(session.lengths)
    if policy is not None:
        policy = start_policy(policy, plan, batch, given.temperature)
    longest, limit = int(session.lengths.max()), int(session.request.limit.max())
    need = (longest, limit, max(plan.longest, plan.waiting))
    if given.capacity is not None:
        capacity = check_capacity(given.capacity, *need)
    else:
        capacity = choose_capacity(*need, params.spec.target.max_positions, grows=given.grows)
    tokens = np.zeros((batch, capacity), np.int32)
    tokens[:, :longest] = session.tokens[:, :longest]
    controls = None if policy is None else policy.controls
    return dataclasses.replace(
        session,
        params=params,
        config=config,
        request=session.request.replace(controls=controls),
        tokens=tokens,
        capacity=capacity,
        policy=policy,
    )


def _make_request(
    ids: list[list[int]],
    limit: int,
    least: int,
    stop: tuple[int, ...],
    seed: int,
    sampling: SamplingValues,
) -> Request:
    """Make the arrays that every round reads."""
    return Request(
        limit=np.full(len(ids), limit, np.int32),
        stop=_padded_stop(stop),
        seed=np.asarray(seed, np.int64),
        sequence=number_sequences(ids),
        sampling=sampling,
        controls=None,
        stop_from=np.full(len(ids), least, np.int32) if least else None,
    )


def run_prefill(session: Session) -> DecodeState:
    """Run the prefill and return the state after it, which holds the first token of each sequence.

    The caller owns the state and may donate it to `jaxspec.round.loop.run`.
    """
    args, static = prefill_arguments(session)
    return prefill(*args, **static)


def prefill_arguments(session: Session) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `jaxspec.call.prefill.prefill`: arrays, and static ones by name."""
    control = session.policy and session.policy.state
    arrays = (session.params, session.request, session.tokens, session.lengths, control)
    sizes = {"capacity": session.capacity, "max_tokens": session.max_tokens}
    return arrays, {"config": session.config, **sizes}


def matmul_precision(session: Session) -> contextlib.AbstractContextManager[None]:
    """Return a context in which float32 weights multiply in full float32.

    Under TF32, the default on GPUs, a tree's logits differ enough from those of autoregressive
    decoding to change tokens. Other dtypes keep JAX's default. Programs are traced for the devices
    that share the weights.
    """
    return full_precision(session.params)


@contextlib.contextmanager
def full_precision(params: Params) -> Iterator[None]:
    """Make the context of `matmul_precision` for the calls of a model."""
    full = params.dtype == jnp.float32
    precision = jax.default_matmul_precision("highest") if full else contextlib.nullcontext()
    with precision, using(params.layout):
        yield


def _token_ids(
    spec: Spec, prompt: Prompt | Prompts, encode: Callable[..., list[int]], max_new_tokens: int
) -> list[list[int]]:
    """Tokenize one prompt or a batch of them.

    Raises:
      ValueError: a prompt and its new tokens exceed the model's positions.
    """
    batch: Any = prompt if is_batch(prompt) else [prompt]
    ids = [encode(one) for one in batch]
    longest = max(map(len, ids))
    if longest + max_new_tokens > spec.target.max_positions:
        raise ValueError(
            f"prompt of {longest} tokens and max_new_tokens={max_new_tokens} exceed the model's "
            f"{spec.target.max_positions} positions: shorten one of them"
        )
    return ids


def _padded_stop(ids: tuple[int, ...]) -> np.ndarray:
    """Pad ids with -1 to a multiple of 8, so that calls with other stop ids share a compilation."""
    padded = np.full(max(8, round_up(len(ids), 8)), -1, np.int32)
    padded[: len(ids)] = ids
    return padded
