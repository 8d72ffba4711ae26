"""What BlockPilot learns from: a prompt's last logits, and what each block size gave for its
answer.

Every prompt is answered greedily once, and its rounds with every block size follow from the text,
see `block_replay`. The paper's score of a size is the unweighted mean of committed tokens a round,
the root and a cut last round included; its label is the size with the largest score, the smallest
of equals. The other label is speed: rounds are charged a measured table of times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxspec.bench.measure.prompt_files import LabelledPrompt
from jaxspec.core.params import Params
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.engine.token_ids import to_ids
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.targets.transformer import Transformer
from training.policies.block_replay import committed_rounds
from training.splits import number_places

# Parts of every domain's prompts: the fourth is for validation and the fifth for the test.
PARTS = 5


class Answers(NamedTuple):
    """P prompts and C block sizes.

    Attributes:
      logits: float32 [P, V], the target's after the last prompt token.
      committed: committed[p][c], tokens of each round, int lists. context: int [P], tokens of the
        prompts.
      sizes: int32 [C]. domains: names [P].
    """

    logits: np.ndarray
    committed: list[list[list[int]]]
    context: np.ndarray
    sizes: np.ndarray
    domains: np.ndarray

    @property
    def rounds(self) -> np.ndarray:
        """int [P, C]."""
        return np.array([[len(rounds) for rounds in own] for own in self.committed])

    @property
    def tokens(self) -> np.ndarray:
        """int [P, C], committed by the rounds."""
        return np.array([[sum(rounds) for rounds in own] for own in self.committed])

    @property
    def length(self) -> np.ndarray:
        """float64 [P, C], mean of committed tokens a round: every round counts the same, which is
        tokens over rounds.
        """
        return self.tokens / self.rounds

    def seconds(self, costs: RoundCosts) -> np.ndarray:
        """Seconds of all rounds of each answer, by block size: float64 [P, C]."""
        taken = np.zeros((len(self.committed), len(self.sizes)))
        for prompt, own in enumerate(self.committed):
            for size, rounds in enumerate(own):
                cached = self.context[prompt] + np.cumsum(rounds) - rounds
                taken[prompt, size] = costs.seconds(cached, block=self.sizes[size]).sum()
        return taken

    def choose(self, sizes: Sequence[int]) -> Answers:
        """The same answers with some of the sizes."""
        at = [self.sizes.tolist().index(size) for size in sizes]
        return self._replace(
            committed=[[own[i] for i in at] for own in self.committed], sizes=self.sizes[at]
        )

    def take(self, prompts: np.ndarray) -> Answers:
        """The answers to some of the prompts, by number."""
        rounds = [self.committed[number] for number in prompts]
        return Answers(
            self.logits[prompts], rounds, self.context[prompts], self.sizes, self.domains[prompts]
        )

    def joined(self, other: Answers) -> Answers:
        """These and others with the same sizes."""
        arrays = (
            np.concatenate([getattr(self, n), getattr(other, n)])
            for n in ("logits", "context", "domains")
        )
        logits, context, domains = arrays
        return Answers(logits, self.committed + other.committed, context, self.sizes, domains)


def labels_of(score: np.ndarray) -> np.ndarray:
    """int [P], the class with the largest score [P, C], the first of equals: the smallest block."""
    return np.argmax(score, axis=1)


def best_of(score: np.ndarray) -> np.ndarray:
    """bool [n, C], the sizes with the largest score [n, C], ties too."""
    return score >= score.max(1, keepdims=True) * (1 - 1e-9)


def split_prompts(
    domains: np.ndarray, test: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the (training, validation, test) prompts, 3 : 1 : 1 in every domain by order of
    appearance.

    Args:
      test: whether there is a test part; else 4 : 1 : 0.

    Raises:
      ValueError: too few prompts.
    """
    place = number_places(domains, PARTS)
    tested = place == PARTS - 1 if test else np.zeros(len(domains), bool)
    checked = place == PARTS - 2
    parts = tuple(np.flatnonzero(part) for part in (~checked & ~tested, checked, tested))
    if not all(len(part) for part in parts[: 2 + test]):
        raise ValueError(
            f"{len(domains)} prompts cannot be split: give at least {PARTS} of a domain"
        )
    return parts


def neighbourhood(trained: int, reach: int = 2) -> tuple[int, ...]:
    """Block sizes around the trained one, `reach` to both sides (the paper's k); none is below
    2.
    """
    return tuple(range(max(trained - reach, 2), trained + reach + 1))


def last_logits(params: Params, ids: Sequence[int]) -> np.ndarray:
    """The target's logits float32 [V] after the last token of a prompt; prompts are padded to
    powers of two.
    """
    width = max(32, 1 << (len(ids) - 1).bit_length())
    tokens = np.zeros((1, width), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(_last_logits(params, tokens, jnp.int32(len(ids) - 1)), np.float32)


@jax.jit
def _last_logits(params: Params, tokens, last):
    target = Transformer(params.spec.target)
    out = target.apply(
        params.target, tokens, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape), None
    )
    return target.apply(params.target, jnp.take(out.hidden, last[None], axis=1), method="logits")[
        0, 0
    ]


def answer(
    params: Params,
    method: str,
    prompts: Sequence[LabelledPrompt],
    sizes: Sequence[int],
    path: Path,
    *,
    batch=16,
    **options,
):
    """Rounds of every prompt with every size, or what an earlier call wrote of them, so that a
    stopped run goes on.

    Args:
      path: .jsonl file of the figures, a prompt a line, of these sizes or more; logits are computed
        again, a forward a prompt.
      batch: prompts answered together.
      options: of `block_replay.committed_rounds`.

    Raises:
      ValueError: the file is of other prompts, sizes or options.
    """
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    ids = [list(to_ids(prompt.content, tokenizer, params.spec.target)) for prompt in prompts]
    found, kept = _open(
        path,
        ids,
        {
            "sizes": list(sizes),
            "method": method,
            "options": {k: str(v) for k, v in options.items()},
        },
    )
    missing = sorted(
        (number for number in range(len(ids)) if number not in found),
        key=lambda number: len(ids[number]),
    )
    with path.open("a") as file, tqdm(total=len(missing), desc="answer", unit="prompt") as progress:
        for start in range(0, len(missing), batch):
            # Prompts of like lengths share a compilation, and so does what is left over.
            chosen = missing[start : start + batch]
            filled = chosen + chosen[:1] * (batch - len(chosen))
            answers = committed_rounds(
                params, method, [ids[number] for number in filled], kept, **options
            )
            for number, committed in zip(chosen, answers, strict=False):
                found[number] = committed
                row = {"prompt": number, "name": _name(ids[number]), "committed": committed}
                print(json.dumps(row), file=file, flush=True)
            progress.update(len(chosen))
    # A text that its first token ends has no rounds, and nothing to choose.
    used = [number for number in range(len(prompts)) if found[number][0]]
    logits = np.stack([last_logits(params, ids[number]) for number in used])
    context, domains = (
        np.array([len(ids[number]) for number in used]),
        np.array([prompts[number].domain for number in used]),
    )
    return Answers(
        logits, [found[number] for number in used], context, np.asarray(kept, np.int32), domains
    ).choose(sizes)


def _open(path: Path, ids: list[list[int]], described: dict) -> tuple[dict[int, list], list[int]]:
    """({number: committed} of a file that is there, its sizes); else a new one is begun."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        path.write_text(json.dumps(described) + "\n")
        return {}, described["sizes"]
    header, *rows = map(json.loads, path.read_text().splitlines())
    if header | {"sizes": None} != described | {"sizes": None} or not set(
        described["sizes"]
    ) <= set(header["sizes"]):
        raise ValueError(
            f"{path} is of {header}, not of {described}: give another folder, or delete it"
        )
    rows = [row for row in rows if row["prompt"] < len(ids)]
    if any(row["name"] != _name(ids[row["prompt"]]) for row in rows):
        raise ValueError(f"{path} is of other prompts: give another folder, or delete it")
    return {row["prompt"]: row["committed"] for row in rows}, header["sizes"]


def _name(ids: list[int]) -> str:
    return hashlib.sha256(str(ids).encode()).hexdigest()[:8]
