"""Read the device's state and make the outputs of a call."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from jaxspec.call.output import DraftTree, Output, PerRound, Stats, TracedRound
from jaxspec.call.session import Session
from jaxspec.call.text.detokenize import continue_after
from jaxspec.call.text.stops import find_stop
from jaxspec.call.text.streamed_text import StreamedText
from jaxspec.core.state import Accepted, DecodeState, RecurrentState, Tree
from jaxspec.policies.protocol import Policy
from jaxspec.round.verify import score_rows

Traces = list[list[TracedRound]]  # by sequence


class Seconds(NamedTuple):
    """Wall-clock times of a call, see `jaxspec.call.output.Stats`."""

    prefill: float
    decode: float
    compile: float


class StopSearch:
    """Looks for stop strings in a sequence, at each token once."""

    def __init__(self, session: Session, index: int):
        """Begin with sequence `index` of a call, of which nothing is read yet."""
        self._text = start_text(session, index)
        self._read = 0

    def read(self, tokens: np.ndarray, emitted: int) -> bool:
        """Read what is new among the first `emitted` of `tokens` int [N].

        Returns:
          Whether a stop string is complete.
        """
        self._text.add(tokens[self._read : emitted].tolist())
        self._read = emitted
        return self._text.stopped


def start_text(session: Session, index: int) -> StreamedText:
    """Begin the text of sequence `index`."""
    return StreamedText(session.tokenizer, session.stop_strings, session.prompt(index))


def read_sequence(
    session: Session, state: DecodeState, index: int
) -> tuple[list[int], str | None, bool]:
    """Read one sequence: its tokens so far, their text, and whether a stop string ended it."""
    tokens = np.asarray(state.tokens)[index, : np.asarray(state.emitted)[index]].tolist()
    if session.tokenizer is None:
        return tokens, None, False
    decode = continue_after(session.tokenizer.decode, session.prompt(index))
    found = find_stop(tokens, decode, session.stop_strings)
    if found is None:
        return tokens, decode(tokens), False
    return tokens[: found[0]], found[1], True


def record_round(
    session: Session, before: tuple[RecurrentState, ...], state: DecodeState, traces: Traces
) -> None:
    """Append the last round to the traces of the sequences that took part in it.

    Args:
      before: states of recurrent layers before the round.
    """
    round, temperature = (state.tree, state.accepted), session.request.sampling.temperature
    scores = score_rows(session.params, state.cache, before, *round, temperature)
    tree, accepted, scores = jax.device_get((*round, scores))
    for b, record in enumerate(traces):
        if accepted.count[b]:
            record.append(read_round(tree, accepted, b, scores))


def read_round(
    tree: Tree, accepted: Accepted, b: int, scores: np.ndarray | None = None
) -> TracedRound:
    """Make the trace of a round of sequence `b`, from what the host has read.

    Args:
      scores: float32 [B, N], see `jaxspec.round.verify.score_rows`; None: not known.
    """
    size, count = int(tree.size[b]), int(accepted.count[b])
    rows = (tree.token, tree.parent, tree.depth, tree.logprob)
    known = None if scores is None else np.asarray(scores[b, :size])
    drawn = DraftTree(*(np.asarray(field[b, :size]) for field in rows), target_logprob=known)
    path = tuple(map(int, accepted.path[b, :count]))
    return TracedRound(drawn, path, int(accepted.bonus[b]))


def make_outputs(
    session: Session,
    state: DecodeState,
    seconds: Seconds,
    traces: Traces | None = None,
    rounds_only: bool = False,
) -> list[Output]:
    """Make an `Output` per prompt.

    Args:
      seconds: of the call, the same for all its texts.
      rounds_only: whether `seconds.decode` is the time of rounds alone, from which the policy may
        learn.
    """
    host = jax.device_get(state.replace(cache=None, draft=None, counts=None))
    policy = _learned(session, state, host, seconds.decode if rounds_only else None)
    return [_output(session, host, b, seconds, traces, policy) for b in range(len(session.lengths))]


def _learned(
    session: Session, state: DecodeState, host: DecodeState, seconds: float | None
) -> Policy | None:
    """Return the policy with what it learned from the call."""
    if session.policy is None:
        return None
    policy = session.policy.replace(state=state.control)
    if seconds is None:
        return policy
    controls = policy.config.observe_seconds(
        policy.controls, session.policy.state, host.control, seconds
    )
    return policy.replace(controls=controls)


def _output(
    session: Session,
    host: DecodeState,
    b: int,
    seconds: Seconds,
    traces: Traces | None,
    policy: Policy | None,
) -> Output:
    tokens, text, by_text = read_sequence(session, host, b)
    stop_ids = set(np.asarray(session.request.stop).tolist())
    rounds = int(host.rounds[b])
    emitted = _cut_rounds(np.asarray(host.round_emitted[b][:rounds]), len(tokens) - 1)
    count = len(emitted)
    longest = host.accepted.path.shape[1]
    stats = Stats(
        rounds=count,
        emitted=len(tokens),
        drafted=int(host.round_drafted[b][:count].sum()),
        accept_hist=tuple(np.bincount(emitted, minlength=longest + 1).tolist()),
        finish_reason="stop" if by_text or tokens[-1] in stop_ids else "length",
        prefill_seconds=seconds.prefill,
        decode_seconds=seconds.decode,
        compile_seconds=seconds.compile,
    )
    per_round = PerRound(
        tokens=emitted,
        rows=np.asarray(host.round_drafted[b][:count]) + 1,
        context=session.lengths[b] + np.cumsum(emitted) - emitted,
        steps=None if host.round_steps is None else np.asarray(host.round_steps[b][:count]),
        block=None if host.block is None else int(host.block[b]),
    )
    traced = None if traces is None else traces[b][:count]
    return Output(text, tokens, stats, traced, policy, per_round)


def _cut_rounds(emitted: np.ndarray, total: int) -> np.ndarray:
    """Cut the tokens of the rounds off at `total`; a stop string may have lowered it."""
    before = np.cumsum(emitted) - emitted
    return np.minimum(emitted, total - before)[before < total].astype(np.int64)
