"""The JSON of answers: whole ones, chunks of streams, usage, and who made which token."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxspec.engine.detokenize import Detokenizer
from jaxspec.engine.output import TracedRound
from jaxspec.serve.http.generation import Delta

Decode = Callable[[list[int]], str]


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
      accepted: tokens of accepted drafts.
    """

    prompt: int
    completion: int = 0
    rounds: int = 0
    accepted: int = 0

    def add(self, delta: Delta) -> None:
        """Count what is new."""
        self.completion += len(delta.tokens)
        self.rounds += delta.rounds
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
        """Return the figures of speculation; the first token of a choice comes from no round."""
        length = 1 + self.accepted / self.rounds if self.rounds else None
        counts = {
            "num_drafts": self.rounds,
            "num_accepted_tokens": self.accepted,
            "mean_acceptance_length": length,
        }
        return {"speculative_decoding": counts}


class Trace:
    """Says who made which part of a choice's text, and draws its rounds.

    The pieces of a delta, joined, are the delta's text.
    """

    def __init__(self, decode: Decode):
        self._decode, self._text = decode, Detokenizer(decode)
        self._makers: list[tuple[int, bool]] = []  # (end in the text, whether drafted) by token
        self._shown = 0

    def describe(self, delta: Delta) -> dict[str, Any]:
        """Describe a delta: its pieces and its rounds."""
        for token, drafted in zip(delta.tokens, delta.drafted, strict=True):
            self._text.add([token])
            self._makers.append((len(self._text.text), drafted))
        rounds = [describe_round(one, self._decode) for one in delta.trees]
        return {"pieces": self._cut(delta.text), "rounds": rounds}

    def _cut(self, text: str) -> list[dict[str, Any]]:
        """Cut new text where one token ends and the next begins."""
        pieces, begin = [], self._shown
        self._shown += len(text)
        while begin < self._shown:
            while len(self._makers) > 1 and self._makers[0][0] <= begin:
                self._makers.pop(0)
            # The last token has the rest too: bytes of a character that stays incomplete.
            end, drafted = self._makers[0]
            end = self._shown if len(self._makers) == 1 else min(end, self._shown)
            offset = len(text) - self._shown
            pieces.append({"text": text[begin + offset : end + offset], "drafted": drafted})
            begin = end
        return pieces


def describe_round(one: TracedRound, decode: Decode) -> dict[str, Any]:
    """Describe a round for a picture: the tree's rows, the accepted ones and the bonus."""
    tree = one.tree
    return {
        "text": [decode([int(token)]) for token in tree.token],
        "parent": np.asarray(tree.parent).tolist(),
        "depth": np.asarray(tree.depth).tolist(),
        "logprob": [round(float(value), 4) for value in tree.logprob],
        "path": list(map(int, one.path)),
        "bonus": decode([int(one.bonus)]),
    }
