"""An engine without a device: each text is a function of its request. And a tokenizer of bytes."""

from __future__ import annotations

import collections
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxspec.call.output import DraftTree, TracedRound
from jaxspec.call.text.detokenize import Detokenizer
from jaxspec.call.text.stops import Stops, find_stop
from jaxspec.serve.requests import (
    InvalidRequest,
    QueueFull,
    ServeRequest,
    TokenLogprob,
    Update,
)
from jaxspec.serve.scheduling.counters import Counters

EOS = 256
KEPT = 1000
ALPHABET = [bytes([c]) for c in b"abcdefghij klm"] + ["ü".encode(), "€".encode()]


class ByteTokenizer:
    """Tokens are bytes; the chat template writes role and content."""

    has_chat_template = True
    info = {"tokenizer_class": "ByteTokenizer", "eos_token": "<eos>", "chat_template": None}

    def __len__(self) -> int:
        return EOS + 1

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())

    def name_token(self, token: int) -> str:
        return "<eos>" if token == EOS else f"0x{token:02X}"

    def chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
        if variables.get("fail"):
            raise RuntimeError("the template refuses")
        lines = [f"{one['role']}: {one['content']}" for one in messages]
        lines += [f"{name}={value}" for name, value in variables.items()]
        return self.encode("\n".join(lines) + "\n")

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        end = b"<eos>" if special else b""
        return b"".join(bytes([one]) if one < EOS else end for one in ids).decode(errors="replace")


def expected_tokens(request: ServeRequest) -> list[int]:
    """What the engine generates for a request that nothing cuts short."""
    sampled = (request.seed, request.sequence) if request.temperature else ()
    seed = hashlib.blake2b(repr((request.tokens, sampled)).encode(), digest_size=8).digest()
    draw = np.random.default_rng(int.from_bytes(seed, "little"))
    tokens: list[int] = []
    while len(tokens) < request.max_new_tokens:
        tokens += ALPHABET[draw.integers(len(ALPHABET))]
    tokens = tokens[: request.max_new_tokens]
    stops = tuple(one for one in request.stop if isinstance(one, str))
    found = find_stop(tokens, ByteTokenizer().decode, Stops(stops))
    return tokens if found is None else tokens[: found[0]]


class Slot:
    """A running request."""

    def __init__(self, id: int, request: ServeRequest):
        self.id, self.request, self.made, self.shown = id, request, 0, 0
        self.tokens = expected_tokens(request)
        self.text = Detokenizer(ByteTokenizer().decode)
        self.late = time.monotonic() + (request.deadline or 1e9)
        self.stops = tuple(one for one in request.stop if isinstance(one, str))
        self.unread = request.prompt_logprobs

    def advance(self, count: int) -> Update:
        news = self.tokens[self.made : self.made + count]
        first = self.made == 0
        self.made += len(news)
        self.text.add(news)
        finish = None
        if self.made == len(self.tokens):
            finish = "length" if self.made == self.request.max_new_tokens else "stop"
        if finish is None:
            ready = Stops(self.stops).safe_length(self.text.text)
            whole = self.text.text[: max(ready, self.shown)]
        else:
            found = find_stop(self.tokens, ByteTokenizer().decode, Stops(self.stops))
            whole = ByteTokenizer().decode(self.tokens) if found is None else found[1]
            finish = finish if found is None else "stop"
        piece, self.shown = whole[self.shown :], max(self.shown, len(whole))
        drafted = tuple(np.bool_(i < len(news) - 1 and not first) for i in range(len(news)))
        tree = draw_tree(news) if self.request.trace and not first else None
        rounds = 0 if first else 1
        tokens, count = tuple(map(np.int32, news)), self.request.logprobs
        ranks = () if count is None else tuple(rank(token, count) for token in news)
        drafts = int(any(drafted))  # a round of one token had none
        more = {"drafts": drafts, "draft_tokens": 4 * drafts}
        return Update(self.id, tokens, drafted, piece, finish, rounds, tree, ranks, **more)

    def read_prompt(self) -> Update | None:
        """The prompt's log-probabilities, once."""
        count, self.unread = self.unread, None
        if count is None:
            return None
        found = tuple(rank(token, count) for token in self.request.tokens[1:])
        nothing = self.request.max_new_tokens == 0
        end = {"text": "", "finish": "length"} if nothing else {}
        return Update(self.id, prompt_logprobs=found, **end)


def rank(token: int, count: int) -> TokenLogprob:
    """A token, likelier the smaller its id, among alternatives of which the second is no text."""
    top = [(97, -0.25), (0xE2, -1.5), (token, -token / 64.0), (98, float("-inf"))]
    return TokenLogprob(-token / 64.0, tuple(top[:count]), 1 + token)


def draw_tree(news: list[int]) -> TracedRound:
    """A root, a chain of what was accepted and one rejected child of the root."""
    chain = len(news) - 1
    token = np.array([97, *news[:-1], 122])
    parent = np.array([-1, *range(chain), 0])
    depth = np.array([0, *range(1, chain + 1), 1])
    tree = DraftTree(token, parent, depth, -0.1 * np.arange(chain + 2.0))
    return TracedRound(tree, tuple(range(chain + 1)), news[-1])


class FakeEngine:
    """An engine of `slots` slots; `hook` runs at the start of every visit.

    Attributes:
      visits: how many there were. most_running: most slots that were busy at once.
      freed: {id: visits when its slot became free}. seen: requests. Both keep the last ones alone.
      submitted, ended: how many requests came and went.
    """

    def __init__(
        self,
        slots: int = 4,
        queue: int = 8,
        room: int = 512,
        seconds: float = 0.002,
        per_visit: int = 3,
        hook: Callable[[], None] = lambda: None,
    ):
        self.slots, self.queue, self.room, self.pulse = slots, queue, room, None
        self.seconds, self.per_visit, self.hook = seconds, per_visit, hook
        self.visits, self.most_running, self.tokens = 0, 0, 0
        self.freed: dict[int, int] = {}
        self.seen: collections.deque[ServeRequest] = collections.deque(maxlen=KEPT)
        self.submitted, self.ended = 0, 0
        self._lock, self._waiting, self._running = threading.Lock(), [], []
        self._cancelled: set[int] = set()

    def warm_up(self, wait: bool = True) -> None:
        time.sleep(0.01)

    missing: list[str] = []
    unsettled = False

    def settle(self) -> bool:
        return False

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._waiting and not self._running

    def submit(self, request: ServeRequest) -> int:
        if wrong := [token for token in request.tokens if not 0 <= token <= EOS]:
            message = f"token id {wrong[0]} is not in the vocabulary: give ids up to {EOS}"
            raise InvalidRequest("tokens", message)
        with self._lock:
            if len(self._waiting) >= self.queue:
                raise QueueFull(1.5)
            self.seen.append(request)
            self.submitted += 1
            self._waiting.append(Slot(self.submitted, request))
            return self.submitted

    def cancel(self, id: int) -> None:
        with self._lock:
            self._cancelled.add(id)

    def visit(self) -> list[Update]:
        self.visits += 1
        self.hook()
        time.sleep(self.seconds)
        with self._lock:
            updates = self._drop_cancelled()
            while self._waiting and len(self._running) < self.slots:
                self._running.append(self._waiting.pop(0))
            self.most_running = max(self.most_running, len(self._running))
            for slot in [one for one in self._running if time.monotonic() > one.late]:
                updates.append(Update(slot.id, finish="deadline"))
                self._free(slot)
            for slot in list(self._running):
                if (read := slot.read_prompt()) is not None:
                    updates.append(read)
                if read is None or read.finish is None:
                    updates.append(slot.advance(self.per_visit))
                self.tokens += len(updates[-1].tokens)
                if updates[-1].finish is not None:
                    self._free(slot)
            return updates

    def close(self) -> None:
        pass

    def counters(self) -> dict[str, Any]:
        with self._lock:
            real = Counters(self.slots, depth=3).as_dict(len(self._running), len(self._waiting))
            return real | {
                "tokens": self.tokens,
                "rounds": self.visits,
                "slot_rounds": 8,
                "drafts": 5,
                "draft_tokens": 20,
                "accepted": [3, 2, 1],
                "rows_per_round": {8: 4, 16: 1},
                "visit_seconds": 1.5,
                "compiles_after_warm_up": 0,
            }

    def _drop_cancelled(self) -> list[Update]:
        ended = [one for one in (*self._running, *self._waiting) if one.id in self._cancelled]
        for slot in ended:
            self._free(slot)
        self._cancelled.clear()
        return [Update(slot.id, finish="abort") for slot in ended]

    def _free(self, slot: Slot) -> None:
        self.ended += 1
        self.freed[slot.id] = self.visits
        self.freed.pop(slot.id - KEPT, None)
        for place in (self._running, self._waiting):
            if slot in place:
                place.remove(slot)
