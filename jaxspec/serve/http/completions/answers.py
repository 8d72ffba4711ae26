"""The JSON of answers: whole ones, chunks of streams, usage, and who made which token."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.call.output import TracedRound
from jaxspec.call.text.detokenize import Decode, Detokenizer, continue_after
from jaxspec.serve.http.completions.generation import Delta


@dataclasses.dataclass(frozen=True)
class Envelope:
    """What all JSON objects of an answer have in common.

    Attributes:
      id: of the answer, with OpenAI's prefix.
      model: the name that the client knows it by.
      chat: whether it answers messages.
      created: seconds since 1970.
    """

    id: str
    model: str
    chat: bool
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """Put choices into an object."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": f"{kind}.chunk" if chunk and self.chat else kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def choice(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        """Make a whole choice."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **said, "logprobs": None, "finish_reason": finish}

    def part(self, index: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        """Make a choice of a chunk; the first one of a chat names the role."""
        delta = ({"role": "assistant"} if first else {}) | (
            {"content": text} if text or first else {}
        )
        said = {"delta": delta} if self.chat else {"text": text}
        return {"index": index, **said, "logprobs": None, "finish_reason": finish}


@dataclasses.dataclass
class Tally:
    """Counts of the tokens of an answer.

    Attributes:
      prompt, completion: tokens of the prompts and of all choices.
      rounds: rounds of all choices.
      drafts, draft_tokens: drafts that they verified, and the tokens of these.
      accepted: tokens of accepted drafts.
    """

    prompt: int
    completion: int = 0
    rounds: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0

    def add(self, delta: Delta) -> None:
        """Count what is new."""
        self.completion += len(delta.tokens)
        self.rounds += delta.rounds
        self.drafts += delta.drafts
        self.draft_tokens += delta.draft_tokens
        self.accepted += sum(delta.drafted)

    def usage(self) -> dict[str, int]:
        """Return OpenAI's usage object."""
        total = self.prompt + self.completion
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": total,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the figures of speculation; the acceptance length is tokens per round, of any
        kind.
        """
        length = 1 + self.accepted / self.rounds if self.rounds else None
        counts = {
            "num_rounds": self.rounds,
            "num_drafts": self.drafts,
            "num_draft_tokens": self.draft_tokens,
            "num_accepted_tokens": self.accepted,
            "mean_acceptance_length": length,
        }
        return {"speculative_decoding": counts}


class Trace:
    """Says who made which part of a choice's text, and draws its rounds.

    The pieces of a delta, joined, are the delta's text.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()):
        """Make it for the answer to a prompt of token ids."""
        self._decode = continue_after(decode, prompt)
        self._text = Detokenizer(self._decode)
        self._made = 0
        # Tokens whose text may not be out yet: (where it ends, the token's number, whether
        # drafted).
        self._ends: list[tuple[int, int, bool]] = []
        self._shown = 0

    def describe(self, delta: Delta) -> dict[str, Any]:
        """Describe a delta: its pieces, each of one token, and its rounds."""
        for token, drafted in zip(delta.tokens, delta.drafted, strict=True):
            self._text.add([token])
            self._ends.append((self._text.length, self._made, drafted))
            self._made += 1
        rounds = [describe_round(one, before, self._decode) for before, one in delta.trees]
        return {"pieces": self._cut(delta.text), "rounds": rounds}

    def _cut(self, text: str) -> list[dict[str, Any]]:
        """Cut new text where the text of one token ends and the next begins."""
        pieces, begin = [], self._shown
        self._shown += len(text)
        while begin < self._shown:
            while len(self._ends) > 1 and self._ends[0][0] <= begin:
                self._ends.pop(0)
            end, number, drafted = self._ends[0]
            # The last token has the rest too: bytes of a character that stays incomplete.
            end = self._shown if len(self._ends) == 1 else min(end, self._shown)
            offset = len(text) - self._shown
            piece = {"text": text[begin + offset : end + offset], "drafted": drafted}
            pieces.append(piece | {"token": number})
            begin = end
        return pieces


def describe_round(one: TracedRound, before: int, decode: Decode) -> dict[str, Any]:
    """Describe a round for a picture.

    Returns:
      `before`: tokens of the choice before it; `text`, `parent`, `depth`, `logprob`: of the tree's
      rows, root first; `path`: the accepted rows; `bonus`: text of the target's own token.
    """
    tree = one.tree
    return {
        "before": before,
        "text": [decode([int(token)]) for token in tree.token],
        "parent": np.asarray(tree.parent).tolist(),
        "depth": np.asarray(tree.depth).tolist(),
        "logprob": [round(float(value), 4) for value in tree.logprob],
        "path": list(map(int, one.path)),
        "bonus": decode([int(one.bonus)]),
    }
