"""What BlockPilot learns from: a prompt's last logits, and what each block size gave for its answer.

Every prompt is answered greedily with every block size, sizes taking turns, so that the speeds of a prompt are measured side by
side. The paper's score of a size is the unweighted mean of committed tokens a round, the root and a cut last round included;
its label is the size with the largest score, the smallest of equals. Speed is the other label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxspec
from jaxspec import prompts as prompting
from jaxspec.bench.prompts import Prompt
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.params import Params
from jaxspec.targets.transformer import Transformer

# Parts of every domain's prompts: the fourth is for validation and the fifth for the test.
PARTS = 5


class Answers(NamedTuple):
    """P prompts and C block sizes.

    Attributes:
      logits: float32 [P, V], the target's after the last prompt token.
      rounds: int32 [P, C]. tokens: int32 [P, C], committed by the rounds. seconds: float64 [P, C], of them, medians.
      sizes: int32 [C]. domains: names [P].
    """

    logits: np.ndarray
    rounds: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    sizes: np.ndarray
    domains: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """float64 [P, C], mean of committed tokens a round: every round counts the same, which is tokens over rounds."""
        return self.tokens / self.rounds

    @property
    def speed(self) -> np.ndarray:
        """float64 [P, C], committed tokens a second."""
        return self.tokens / self.seconds


def labels_of(score: np.ndarray) -> np.ndarray:
    """int [P], the class with the largest score [P, C], the first of equals: the smallest block."""
    return np.argmax(score, axis=1)


def split(domains: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the (training, validation, test) prompts, 3 : 1 : 1 in every domain by order of appearance.

    Raises:
      ValueError: too few prompts.
    """
    place = np.zeros(len(domains), int)
    for domain in np.unique(domains):
        place[domains == domain] = np.arange(np.sum(domains == domain)) % PARTS
    parts = np.flatnonzero(place < 3), np.flatnonzero(place == 3), np.flatnonzero(place == 4)
    if not all(len(part) for part in parts):
        raise ValueError(f"{len(domains)} prompts cannot be split in three: give at least {PARTS} of a domain")
    return parts


def neighbourhood(trained: int, reach: int = 2) -> tuple[int, ...]:
    """Block sizes around the trained one, `reach` to both sides (the paper's k); none is below 2."""
    return tuple(range(max(trained - reach, 2), trained + reach + 1))


def last_logits(params: Params, ids: Sequence[int]) -> np.ndarray:
    """The target's logits float32 [V] after the last token of a prompt; prompts are padded to powers of two."""
    width = max(32, 1 << (len(ids) - 1).bit_length())
    tokens = np.zeros((1, width), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(_last_logits(params, tokens, jnp.int32(len(ids) - 1)), np.float32)


@jax.jit
def _last_logits(params: Params, tokens, last):
    target = Transformer(params.spec.target)
    out = target.apply(params.target, tokens, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape), None)
    return target.apply(params.target, jnp.take(out.hidden, last[None], axis=1), method="logits")[0, 0]


def answer(params: Params, method: str, prompts: Sequence[Prompt], sizes: Sequence[int], path: Path, repeats=1, **options):
    """Answer prompts with every size, or read what an earlier call wrote; one prompt a line, so that a stopped run goes on.

    Args:
      path: .jsonl file of the figures; logits are computed again, which is one forward a prompt.
      repeats: timed answers with each size, after one that is not.
      options: of `jaxspec.decode`; a `chain` builder's budget follows the block.

    Raises:
      ValueError: the file is of other prompts or sizes.
    """
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    kept = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    described = {"sizes": list(sizes), "method": method, "repeats": repeats, "options": {k: str(v) for k, v in options.items()}}
    if kept and kept[0] != described:
        raise ValueError(f"{path} is of {kept[0]}, not of {described}: give another folder, or delete it")
    path.parent.mkdir(parents=True, exist_ok=True)
    found, logits = kept[1:], []
    with path.open("a") as file:
        if not kept:
            print(json.dumps(described), file=file, flush=True)
        for number, prompt in enumerate(tqdm(prompts, desc="answer", unit="prompt")):
            if number >= len(found):
                found.append(_answer_one(params, method, prompt, sizes, repeats, options))
                print(json.dumps(found[-1]), file=file, flush=True)
            logits.append(last_logits(params, prompting.to_ids(prompt.content, tokenizer, params.spec.target)))
    # A text that its first token ends has no rounds, and nothing to choose.
    used = [number for number in range(len(prompts)) if min(found[number]["rounds"]) > 0]
    columns = [np.array([found[number][name] for number in used]) for name in ("rounds", "tokens", "seconds")]
    domains = np.array([prompts[number].domain for number in used])
    return Answers(np.stack([logits[number] for number in used]), *columns, np.asarray(sizes, np.int32), domains)


def _answer_one(params, method, prompt, sizes, repeats, options) -> dict:
    samples: list[list] = [[] for _ in sizes]
    for repeat in range(repeats + 1):
        for own, size in zip(samples, sizes, strict=True):
            budget = {"budget": size} if options.get("builder") == "chain" else {}
            settings = options | {"block_size": size} | budget
            out = jaxspec.decode(params, prompt.content, method=method, temperature=0.0, **settings)
            if repeat:
                own.append(out.stats)
    return {
        "rounds": [own[0].rounds for own in samples],
        "tokens": [own[0].emitted - 1 for own in samples],
        "seconds": [float(np.median([stats.decode_seconds for stats in own])) for own in samples],
    }
