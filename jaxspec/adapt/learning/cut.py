"""Cut the text of a decode call into segments, and choose what is trained on and what is held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.learning.segments import Segments, read_rows
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState
from jaxspec.round.evidence import Evidence
from jaxspec.round.sizes import prompt_chunk
from jaxspec.targets.layouts.registry import strip


@dataclasses.dataclass(frozen=True)
class SegmentShape:
    """Static sizes of segments, see `Segments`.

    Attributes:
      rows: W.
      context: rows before the first round of a segment, from the prompt or the segment before.
      rounds: Q; further rounds of a segment are left out.
      depths: D.
      held_out: share of the rounds whose positions are held out.
      accepted: share of accepted positions among those trained on; they slow down forgetting.
      decay: weight of a rejected position per level of depth.
      accepted_weight: weight of an accepted position.

    Raises:
      ValueError: a share is not between 0 and 1, or the context leaves no row for a round.
    """

    rows: int = 128
    context: int = 32
    rounds: int = 64
    depths: int = 8
    held_out: float = 0.25
    accepted: float = 0.25
    decay: float = 0.8
    accepted_weight: float = 0.5

    def __post_init__(self):
        for name in ("held_out", "accepted"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}: give at least 0 and less than 1")
        if not 0 <= self.context < self.rows:
            raise ValueError(f"context is {self.context}: give fewer than the {self.rows} rows")

    def all_rejected(self) -> SegmentShape:
        """Return these sizes with all rejected positions as data, and nothing else."""
        return dataclasses.replace(self, held_out=0.0, accepted=0.0, decay=1.0)


def cut_segments(
    params: Params,
    state: DecodeState,
    prompts: Sequence[Sequence[int]],
    shape: SegmentShape,
    seed: Sequence[int],
) -> Iterator[Segments]:
    """Yield the segments of a finished call, one at a time, without a leading axis.

    Args:
      params: the target's weights compute its distributions.
      state: after the last round, with `evidence`.
      prompts: token ids of the prompts.
      seed: of the choice of positions; equal seeds choose the same.
    """
    evidence, random = state.evidence, np.random.default_rng(list(seed))
    emitted, rejected, rounds = (
        np.asarray(x) for x in (state.round_emitted, evidence.rejected, state.rounds)
    )
    tokens = np.asarray(state.tokens)
    for b, prompt in enumerate(prompts):
        counts, ends = emitted[b, : rounds[b]], rejected[b, : rounds[b]]
        known = np.concatenate([np.asarray(prompt), tokens[b, : 1 + counts.sum()]])
        text = Text(known, len(prompt), counts, ends, prompt_chunk())
        yield from cut_text(params.spec.target, params.target, evidence, b, text, shape, random)


class Text(NamedTuple):
    """A committed text, and the rounds that committed its end.

    Attributes:
      tokens: int [T], with the prompt; the last one has no row yet.
      prompt: tokens before the first round's root, whose rows are those of chunks.
      counts: int [n], tokens that the rounds committed.
      ends: bool [n], whether they ended in a rejection.
      chunk: rows of the chunks.
      first: first position that has a row; those before it were not computed for this text.
    """

    tokens: np.ndarray
    prompt: int
    counts: np.ndarray
    ends: np.ndarray
    chunk: int
    first: int = 0


def cut_text(
    config: TargetConfig,
    target: Any,
    evidence: Evidence,
    sequence: int,
    text: Text,
    shape: SegmentShape,
    random: np.random.Generator,
) -> Iterator[Segments]:
    """Yield the segments of a text, one at a time, without a leading axis.

    Args:
      config, target: of the target, which computes its distributions.
      sequence: index of the text in the evidence.
      random: draws the choice of positions.
    """
    counts, tokens = text.counts, text.tokens
    roots = text.prompt + np.cumsum(counts) - counts
    oldest = max(text.first, len(tokens) - 1 - evidence.kept)
    rows = find_rows(text.prompt, counts, evidence.turn, text.chunk)
    for first, part in _split(roots, counts, oldest, shape):
        read = read_rows(
            config,
            strip(target),
            evidence.features,
            evidence.hidden,
            np.int32(sequence),
            rows[np.minimum(first + np.arange(shape.rows), len(rows) - 1)],
        )
        chosen = choose_positions(counts[part], text.ends[part], shape, random)
        words = np.zeros(shape.rows + 1, np.int32)
        words[: len(tokens) - first] = tokens[first : first + shape.rows + 1]
        begin, count = (np.zeros(shape.rounds, np.int32) for _ in range(2))
        size = part.stop - part.start
        begin[:size], count[:size] = roots[part] - first, counts[part]
        number = np.int32(0)  # until it is written to buffers
        yield Segments(*map(jnp.asarray, (words, *read, begin, count, *chosen, number)))


def find_rows(prompt: int, counts: np.ndarray, turn: int, chunk: int | None = None) -> np.ndarray:
    """Return the row of each cached token in `Evidence`, int32 [T].

    Args:
      prompt: tokens of the prompt. counts: tokens that each round committed.
      turn: of the evidence.
      chunk: rows of the prompt's chunks (None: those of the device that programs are traced for).
    """
    position, chunk = np.arange(prompt + counts.sum()), chunk or prompt_chunk()
    roots = prompt + np.cumsum(counts) - counts
    begin = np.concatenate([position[:prompt] // chunk * chunk, np.repeat(roots, counts)])
    return (begin % turn + position - begin).astype(np.int32)


def _split(
    roots: np.ndarray, counts: np.ndarray, oldest: int, shape: SegmentShape
) -> Iterator[tuple[int, slice]]:
    """Yield (absolute position of the first row, rounds) of each segment.

    Args:
      roots: positions of the rounds' roots. counts: tokens that they committed.
      oldest: first position that the ring still holds.
    """
    start = int(np.searchsorted(roots, oldest))
    while start < len(roots):
        first = max(oldest, int(roots[start]) - shape.context)
        inside = roots[start:] + counts[start:] <= first + shape.rows
        stop = start + min(int(inside.sum()), shape.rounds)
        if stop == start:  # a round that is longer than a segment
            return
        yield first, slice(start, stop)
        start = stop


def choose_positions(
    counts: np.ndarray, ends: np.ndarray, shape: SegmentShape, random: np.random.Generator
) -> tuple[Any, Any, Any]:
    """Choose the positions of some rounds to train on and to hold out.

    Rounds are held out as a whole, so that no position of a held-out round is trained on. A
    held-out round counts with all positions that the drafter reaches: so these are a fair sample of
    tokens, and not of the drafter's mistakes alone.

    Args:
      counts: int [n], tokens that the rounds committed.
      ends: bool [n], whether they ended in a rejection.

    Returns:
      reject, weight and held float32 [Q, D] of `Segments`.
    """
    depth = np.arange(shape.depths)
    reject, weight, held = (np.zeros((shape.rounds, shape.depths), np.float32) for _ in range(3))
    size = len(counts)
    out = random.random(size) < shape.held_out
    inside = depth < counts[:, None]
    held[:size] = inside & out[:, None]
    reject[:size] = ends[:, None] & (depth == counts[:, None] - 1)
    trained = reject[:size] * ~out[:, None]
    accepted = (inside & (depth < counts[:, None] - 1) & ~out[:, None]).astype(float)
    wanted = shape.accepted / (1 - shape.accepted) * trained.sum()
    sampled = random.random(accepted.shape) * accepted.sum() < wanted * accepted
    weight[:size] = trained * shape.decay**depth + shape.accepted_weight * sampled
    return reject, weight, held
