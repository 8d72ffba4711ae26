"""What `decode` returns: plain Python and NumPy values, cut exactly at the stop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stats:
    """Figures of one generated text. The first token comes from the prefill and counts in no round.

    Attributes:
      rounds: rounds that emitted tokens.
      emitted: generated tokens, the first one included.
      drafted: draft nodes that the target verified, without roots.
      accept_hist: accept_hist[i] rounds emitted i tokens, the bonus included. A round that a stop
        or the limit cut short counts with what it emitted.
      finish_reason: `stop` (an end-of-text id, stop id or stop string) or `length`.
      prefill_seconds, decode_seconds: wall-clock times of the call's prefill and rounds, the same
        for all texts of a batch. Of compiling, they include only what rounds wait for after the
        first, such as programs of half of a batch.
      compile_seconds: what the call waited for before its first round beside the prefill: tracing,
        compiling, and timing rounds where their costs were not known. Close to 0 in later calls of
        the same shape.
    """

    rounds: int
    emitted: int
    drafted: int
    accept_hist: tuple[int, ...]
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    compile_seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per round, the bonus included: 1.0 for `ar`, NaN without rounds."""
        return (self.emitted - 1) / self.rounds if self.rounds else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens that the rounds emitted per second of `decode_seconds`; the prefill is left out."""
        return (self.emitted - 1) / self.decode_seconds if self.rounds else float("nan")

    def to_dict(self) -> dict:
        """Return all fields and derived figures as JSON-able values."""
        derived = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_second": self.tokens_per_second,
        }
        return dataclasses.asdict(self) | {
            key: None if np.isnan(value) else value for key, value in derived.items()
        }


@dataclasses.dataclass(frozen=True)
class DraftTree:
    """Rows of one round's draft tree, root first: arrays [size].

    Attributes:
      token, parent, depth, logprob: see `jaxspec.core.state.Tree`.
      target_logprob: float32, the target's log-probability of each row's token given its parent, by
        softmax(logits / T) of its raw logits: before penalties, top-k, top-p and min-p. T is the
        sampling temperature, and 1 in greedy decoding. The root's is 0. None in traces of the
        serving engine.
    """

    token: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    logprob: np.ndarray
    target_logprob: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TracedRound:
    """One round of a traced decode.

    Attributes:
      tree: the draft tree as verified.
      path: committed rows, root first; its length is the round's acceptance length, cut at a stop
        or at the limit.
      bonus: the target's own token after the accepted path.
    """

    tree: DraftTree
    path: tuple[int, ...]
    bonus: int


@dataclasses.dataclass(frozen=True)
class PerRound:
    """What each round of a text did, in order: int arrays [rounds].

    Attributes:
      tokens: tokens emitted, the bonus included, without those that a stop or the limit cut off.
      rows: rows verified, the root included.
      context: cached tokens before the round.
      steps: draft steps of the batch after the root's, -1 in rounds that did not draft; None
        without a policy.
      block: slots of the request's block, the anchor included, if a policy chose it.
    """

    tokens: np.ndarray
    rows: np.ndarray
    context: np.ndarray
    steps: np.ndarray | None = None
    block: int | None = None


@dataclasses.dataclass(frozen=True)
class Output:
    """One generated text.

    Attributes:
      text: the text, without special tokens and the stop string; None if the model has no
        tokenizer.
      tokens: generated ids only, up to and including the one that ended the text.
      stats: see `Stats`.
      rounds: one `TracedRound` per round with `trace=True`, else None.
      policy: the call's policy with what it learned from all texts of the call, or None.
      per_round: see `PerRound`; `decode` and `stream` always give it.
    """

    text: str | None
    tokens: list[int]
    stats: Stats
    rounds: list[TracedRound] | None = None
    policy: Any = None
    per_round: PerRound | None = None

    def __repr__(self) -> str:
        """Describe the text in a line; the generated form would print all tokens and rounds."""
        shown = repr(self.tokens[:8])[:-1] + (", ...]" if len(self.tokens) > 8 else "]")
        if self.text is not None:
            shown = repr(self.text if len(self.text) <= 60 else f"{self.text[:57]}...")
        stats = self.stats
        speed = f", {stats.tokens_per_second:.1f} tokens/s" if stats.rounds else ""
        return (
            f"Output({shown}, {len(self.tokens)} tokens in {stats.rounds} rounds, "
            f"{stats.finish_reason}{speed})"
        )
