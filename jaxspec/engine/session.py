"""Prepare a call of `decode`: check its options, pad its prompts, and run the prefill.

Code that runs rounds itself, to time, draw or record them, also begins here. It calls `prepare` and
`run_prefill`, then `jaxspec.engine.loop.run`, all within `matmul_precision`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders import Builder, make_builder
from jaxspec.core.mesh import using
from jaxspec.core.params import Params, Spec
from jaxspec.core.sampling import SamplingValues, make_sampling
from jaxspec.core.state import DecodeState, Request
from jaxspec.drafters.registry import record_of
from jaxspec.drafters.sizes import choose_depth
from jaxspec.engine import arguments
from jaxspec.engine.automatic import recall_policy
from jaxspec.engine.capacity import check_capacity, choose_capacity, room_for, round_up
from jaxspec.engine.drafter_choice import choose_drafter
from jaxspec.engine.plan import ACCEPTANCE, DecodeConfig, Plan, make_plan, suits_lookup
from jaxspec.engine.prefill import prefill
from jaxspec.engine.token_ids import (
    Prompt,
    Prompts,
    is_batch,
    is_chat,
    number_sequences,
    pad,
    to_ids,
)
from jaxspec.io.program_cache import keep_programs
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.policies.protocol import Policy, PolicyConfig
from jaxspec.targets.panel_copies import with_panels

# Rows that a round verifies if neither the caller nor a policy says how many.
BUDGET = 32
# What ends a sequence: one string or token id, or several.
Stop = str | int | Iterable[str | int]


@dataclasses.dataclass(frozen=True)
class Session:
    """A prepared call of B prompts.

    Attributes:
      params: the model and its drafters, with what `jaxspec.targets.panels` adds.
      config: static choices, which decide what is compiled.
      request: arrays that every round reads.
      tokens: int32 [B, S], the prompts, padded to the capacity.
      lengths: int32 [B], tokens of each prompt.
      capacity: rows S of the key-value caches.
      max_tokens: new tokens that the state has room for.
      stop_strings: strings that the host looks for in the text.
      tokenizer: the model's tokenizer, or None if it has none.
      policy: the policy with its first state, or None if it has nothing to decide.
      automatic: whether the policy is the automatic one, which probes and learns, see
        `jaxspec.engine.automatic`.
    """

    params: Params
    config: DecodeConfig
    request: Request
    tokens: np.ndarray
    lengths: np.ndarray
    capacity: int
    max_tokens: int
    stop_strings: tuple[str, ...]
    tokenizer: Any
    policy: Policy | None
    automatic: bool = False


def prepare(
    params: Params,
    prompt: Prompt | Prompts,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    ignore_eos: bool = False,
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
) -> Session:
    """Check the arguments of `jaxspec.decode` and make the session; nothing runs yet.

    Raises:
      TypeError, ValueError: see `jaxspec.decode`.
    """
    keep_programs()
    spec = params.spec
    arguments.check_prompt(prompt)
    max_new_tokens = arguments.check_count("max_new_tokens", max_new_tokens)
    seed = arguments.check_seed(seed)
    arguments.check_flag("ignore_eos", ignore_eos)
    automatic = arguments.check_policy(policy)
    automatic = automatic or (policy is None and budget is None and builder is None)
    if jax.process_count() > 1:  # their clocks differ, and all must decide alike
        if policy is not None and automatic:
            raise ValueError(
                "the policy 'auto' times rounds, and several processes would choose differently: "
                "give a budget, or a policy with costs from `jaxspec calibrate`"
            )
        automatic = False
    tokenizer = load_tokenizer(spec.tokenizer) if spec.tokenizer else None
    ids = _token_ids(spec, prompt, tokenizer, max_new_tokens)
    if automatic and method is None:
        method = choose_drafter(params, len(ids), temperature == 0)
    config, sampling = resolve_config(
        spec,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        method=method,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        acceptance=acceptance,
        coupled=coupled,
        lookup=lookup,
        score_temperature=score_temperature,
        policy=policy.config if isinstance(policy, Policy) else None,
    )
    if lookup is None and automatic and params.layout is None:
        config = dataclasses.replace(config, lookup=suits_lookup(spec, config.method))
    params = with_panels(params, config.method, len(ids))
    chosen = policy if isinstance(policy, Policy) else None
    if automatic:
        chosen, config = recall_policy(params, config, budget, len(ids))
    plan = make_plan(spec, config)
    if chosen is not None:
        chosen = _start_policy(chosen, plan, len(ids), float(temperature))
    strings, stop_ids = arguments.split_stop(stop, spec.target.vocab_size)
    if strings and tokenizer is None:
        raise ValueError(
            "stop strings need a tokenizer, and this model has none: give stop token ids"
        )
    request = Request(
        limit=np.full(len(ids), max_new_tokens, np.int32),
        stop=_padded_stop(stop_ids + (() if ignore_eos else spec.eos)),
        seed=np.asarray(seed, np.int64),
        sequence=number_sequences(ids),
        sampling=sampling,
        controls=None if chosen is None else chosen.controls,
    )
    need = (max(map(len, ids)), max_new_tokens, max(plan.longest, plan.waiting))
    if capacity is not None:
        capacity = check_capacity(arguments.check_count("capacity", capacity), *need)
    else:
        capacity = choose_capacity(*need, spec.target.max_positions, grows=is_chat(prompt))
    tokens, lengths = pad(ids, capacity)
    return Session(
        params,
        config,
        request,
        tokens,
        lengths,
        capacity,
        room_for(max_new_tokens),
        strings,
        tokenizer,
        chosen,
        automatic and chosen is not None,
    )


def resolve_config(
    spec: Spec,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    lookup: bool | None = None,
    score_temperature: float | None = None,
    policy: PolicyConfig | None = None,
) -> tuple[DecodeConfig, SamplingValues]:
    """Check the options of `jaxspec.decode` that decide what is compiled.

    Options without an effect here (a `budget` for `ar`) get their default value, so that calls that
    differ only in them share a compilation.

    Returns:
      The static config, and the sampling numbers, which are traced.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range.
    """
    sampling, values = make_sampling(temperature, top_k, top_p, min_p)
    if method is not None and not isinstance(method, str):
        raise TypeError(f"method is {method!r}: give 'ar', or the name of a loaded drafter")
    method = method or spec.default_method
    arguments.check_choice("acceptance", acceptance, ACCEPTANCE)
    arguments.check_flag("coupled", coupled)
    lookup = lookup is not None and arguments.check_flag("lookup", lookup)
    budget = BUDGET if budget is None else arguments.check_budget(budget)
    if block_size is not None:
        block_size = arguments.check_count("block_size", block_size, 2)
    if depth is not None:
        depth = arguments.check_count("depth", depth)
    if score_temperature is not None:
        score_temperature = arguments.check_positive("score_temperature", score_temperature)
    elif policy is not None:
        score_temperature = policy.score_temperature
    if method == "ar":
        return DecodeConfig(method, sampling), values
    drafter = spec.drafter(method)
    config = DecodeConfig(
        method=method,
        sampling=sampling,
        builder=make_builder(builder or record_of(drafter).default_builder),
        budget=budget,
        depth=choose_depth(drafter, method, depth=depth, block_size=block_size),
        acceptance=acceptance,
        coupled=coupled or acceptance != "match" or sampling.greedy,
        lookup=lookup and not record_of(drafter).retrieval,
        score_temperature=score_temperature,
        policy=policy,
    )
    return config, values


def run_prefill(session: Session) -> DecodeState:
    """Run the prefill and return the state after it, which holds the first token of each sequence.

    The caller owns the state and may donate it to `jaxspec.engine.loop.run`.
    """
    args, static = prefill_arguments(session)
    return prefill(*args, **static)


def prefill_arguments(session: Session) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `jaxspec.engine.prefill.prefill`: arrays, and static ones by name."""
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
    spec: Spec, prompt: Prompt | Prompts, tokenizer: Any, max_new_tokens: int
) -> list[list[int]]:
    """Tokenize one prompt or a batch of them.

    Raises:
      ValueError: a prompt and its new tokens exceed the model's positions.
    """
    batch: Any = prompt if is_batch(prompt) else [prompt]
    ids = [to_ids(one, tokenizer, spec.target) for one in batch]
    longest = max(map(len, ids))
    if longest + max_new_tokens > spec.target.max_positions:
        raise ValueError(
            f"prompt of {longest} tokens and max_new_tokens={max_new_tokens} exceed the model's "
            f"{spec.target.max_positions} positions: shorten one of them"
        )
    return ids


def _start_policy(policy: Policy, plan: Plan, batch: int, temperature: float) -> Policy | None:
    """Return the policy with a state: its own, or a new one if it has none for this temperature.

    Returns None if nothing is left to decide, as for `ar` or trees of a single row.
    """
    if plan.policy is None:
        return None
    shape = plan.shape(batch)
    policy.config.check(shape)
    policy = policy.at_temperature(temperature)
    # On the host: rounds donate their copy of the state, and the caller may use the policy again.
    new = jax.device_get(plan.policy.init(shape))
    if policy.state is None:
        return policy.replace(state=new)
    given = jax.device_get(policy.state)
    if jax.tree.structure(given) != jax.tree.structure(new) or any(
        one.shape != other.shape or one.dtype != other.dtype
        for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(new), strict=True)
    ):
        raise ValueError(
            f"the policy's state comes from a call of other sizes than {shape}: "
            "reset it with policy.replace(state=None)"
        )
    return policy.replace(state=given)


def _padded_stop(ids: tuple[int, ...]) -> np.ndarray:
    """Pad ids with -1 to a multiple of 8, so that calls with other stop ids share a compilation."""
    padded = np.full(max(8, round_up(len(ids), 8)), -1, np.int32)
    padded[: len(ids)] = ids
    return padded
