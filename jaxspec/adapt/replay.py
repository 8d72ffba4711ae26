"""Repeat a session from its events: the same prompts give the same versions, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.adapt.adaptation import Event
from jaxspec.adapt.deciders import Decider, Decision, make_decider
from jaxspec.adapt.deciders.base import Query, State
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.session import AdaptiveSession
from jaxspec.call.text.token_ids import Prompt
from jaxspec.core.params import Params


def replay(
    params: Params,
    events: Sequence[Event],
    prompts: Sequence[Prompt],
    decider: str | Decider,
    *,
    drafter: str | None = None,
    options: AdaptOptions | None = None,
    seed: int = 0,
    **decode: Any,
) -> AdaptiveSession:
    """Decode the prompts again, with the decisions of the events and no clock in them.

    Args:
      params, decider, drafter, options, seed: of the session that made the events.
      events: its `events`, one per prompt.
      decode: options of its calls.

    Returns:
      A session in the state of the first.

    Raises:
      ValueError: a version has other bits than the event says.
    """
    sizes = (options or AdaptOptions()).room
    decisions = [_repeat(event) for event in events]
    scripted = make_scripted(decisions, make_decider(decider, sizes))
    session = AdaptiveSession(params, scripted, drafter=drafter, options=options, seed=seed)
    for event, prompt in zip(events, prompts, strict=True):
        session.decode(prompt, domain=event["domain"], **decode)
        found, wanted = session.events[-1].get("weights"), event.get("weights")
        if found != wanted:
            raise ValueError(
                f"query {event['query']}: the weights are {found}, and were {wanted}: "
                "replay with the same model, options and versions of jax"
            )
    return session


def _repeat(event: Event) -> Decision:
    """Return the decision of an event; instead of judging again, go to the version that won."""
    return Decision(*event["decision"])._replace(judge=(), restore=event["restored"])


def make_scripted(decisions: Sequence[Decision], like: Decider) -> Decider:
    """Make the decider that repeats `decisions`, one per query; later queries are skipped.

    Args:
      like: the decider that made them, whose updates are repeated too.
    """

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        known = query.index < len(decisions)
        return state, decisions[query.index] if known else Decision()

    return like._replace(init=dict, decide=decide, observe=lambda state, update: state)
