"""BlockPilot's training data: a prompt's last logits, and the rounds of its answer by block size.

Each prompt is answered once, or when sampling once with each of some seeds; the rounds of every
block size follow from these texts, see `block_replay`. The paper scores a size by the unweighted
mean of committed tokens per round, counting the root and a last round that is cut short. Its label
is the size with the largest score, and the smallest size among ties. The other label is speed:
rounds take the times of a measured table.
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

from jaxspec.core.params import Params
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.targets.transformer import Transformer

from ..data.splits import number_places
from .block_replay import committed_rounds
from .options import encode_prompts

# Of every five prompts of a domain, the fourth is for validation and the fifth for the test.
PARTS = 5


class Answers(NamedTuple):
    """The rounds of P prompts with C block sizes.

    Attributes:
      logits: float32 [P, V], the target's logits after the last prompt token.
      committed: committed[p][c][s] is the list of tokens that each round of the answer with seed s
        committed.
      context: int [P], prompt lengths in tokens.
      sizes: int32 [C], block sizes.
      domains: names [P].
    """

    logits: np.ndarray
    committed: list[list[list[list[int]]]]
    context: np.ndarray
    sizes: np.ndarray
    domains: np.ndarray

    @property
    def rounds(self) -> np.ndarray:
        """Numbers of rounds of all seeds, int [P, C]."""
        return np.array([[sum(map(len, seeds)) for seeds in own] for own in self.committed])

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that these rounds committed, int [P, C]."""
        return np.array([[sum(map(sum, seeds)) for seeds in own] for own in self.committed])

    @property
    def length(self) -> np.ndarray:
        """Mean committed tokens per round, float64 [P, C]: tokens divided by rounds."""
        return self.tokens / self.rounds

    def seconds(self, costs: RoundCosts) -> np.ndarray:
        """Sum the seconds of the answers' rounds by block size, of all seeds: float64 [P, C]."""
        taken = np.zeros((len(self.committed), len(self.sizes)))
        for prompt, own in enumerate(self.committed):
            for size, seeds in enumerate(own):
                for rounds in seeds:
                    cached = self.context[prompt] + np.cumsum(rounds) - rounds
                    taken[prompt, size] += costs.seconds(cached, block=self.sizes[size]).sum()
        return taken

    def choose(self, sizes: Sequence[int]) -> Answers:
        """Keep some of the sizes."""
        at = [self.sizes.tolist().index(size) for size in sizes]
        return self._replace(
            committed=[[own[i] for i in at] for own in self.committed], sizes=self.sizes[at]
        )

    def take(self, prompts: np.ndarray) -> Answers:
        """Keep some of the prompts, by number."""
        rounds = [self.committed[number] for number in prompts]
        return Answers(
            self.logits[prompts], rounds, self.context[prompts], self.sizes, self.domains[prompts]
        )

    def joined(self, other: Answers) -> Answers:
        """Append other answers with the same sizes."""
        arrays = (
            np.concatenate([getattr(self, n), getattr(other, n)])
            for n in ("logits", "context", "domains")
        )
        logits, context, domains = arrays
        return Answers(logits, self.committed + other.committed, context, self.sizes, domains)


def labels_of(score: np.ndarray) -> np.ndarray:
    """Return the class with the largest score: int [P] from [P, C], the smallest block of ties."""
    return np.argmax(score, axis=1)


def best_of(score: np.ndarray) -> np.ndarray:
    """Mark the sizes with the largest score, ties included: bool [n, C] from [n, C]."""
    return score >= score.max(1, keepdims=True) * (1 - 1e-9)


def split_prompts(
    domains: np.ndarray, test: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split prompts 3 : 1 : 1 within every domain, by order of appearance.

    Args:
      domains: names [P].
      test: whether to make a test part; False splits 4 : 1 : 0.

    Returns:
      Numbers of the (training, validation, test) prompts.

    Raises:
      ValueError: there are too few prompts.
    """
    place = number_places(domains, PARTS)
    tested = place == PARTS - 1 if test else np.zeros(len(domains), bool)
    checked = place == PARTS - 2
    parts = tuple(np.flatnonzero(part) for part in (~checked & ~tested, checked, tested))
    if not all(len(part) for part in parts[: 2 + test]):
        raise ValueError(
            f"{len(domains)} prompts cannot be split: give at least {PARTS} prompts of a domain"
        )
    return parts


def neighbourhood(trained: int, reach: int = 2) -> tuple[int, ...]:
    """Return the block sizes from `trained - reach` (2 at least) to `trained + reach`.

    `reach` is the paper's k.
    """
    return tuple(range(max(trained - reach, 2), trained + reach + 1))


def last_logits(params: Params, ids: Sequence[int]) -> np.ndarray:
    """Compute the target's logits after a prompt's last token: float32 [V].

    Prompts are padded to powers of two, so that few lengths are compiled.
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
    drafter: str,
    prompts: Sequence[LabelledPrompt],
    sizes: Sequence[int],
    path: Path,
    *,
    batch=16,
    samples: int = 1,
    **options,
):
    """Compute the rounds of every prompt with every size; continue from what `path` holds.

    Args:
      params: target and drafter.
      drafter: name of a block drafter.
      prompts: prompts with their domains.
      sizes: block sizes.
      path: .jsonl file of the committed tokens, one prompt per line, of these sizes or more. It
        does not hold the logits: they are computed again, one forward pass per prompt.
      batch: prompts answered together.
      samples: answers of each prompt, with the seeds 0, 1, … (greedy text needs one).
      options: of `block_replay.committed_rounds`.

    Raises:
      ValueError: the file was made with other prompts, sizes or options.
    """
    ids = encode_prompts(params, prompts)
    found, kept = _open(
        path,
        ids,
        {
            "sizes": list(sizes),
            "drafter": drafter,
            "samples": samples,
            "options": {k: str(v) for k, v in options.items()},
        },
    )
    missing = sorted(
        (number for number in range(len(ids)) if number not in found),
        key=lambda number: len(ids[number]),
    )
    with path.open("a") as file, tqdm(total=len(missing), desc="answer", unit="prompt") as progress:
        for start in range(0, len(missing), batch):
            # Prompts of similar length share a compilation; so does the last, filled-up batch.
            chosen = missing[start : start + batch]
            filled = chosen + chosen[:1] * (batch - len(chosen))
            asked = [ids[number] for number in filled]
            by_seed = [
                committed_rounds(params, drafter, asked, kept, seed=seed, **options)
                for seed in range(samples)
            ]
            for number, *own in zip(chosen, *by_seed, strict=False):
                found[number] = committed = [list(of_size) for of_size in zip(*own, strict=True)]
                row = {"prompt": number, "name": _name(ids[number]), "committed": committed}
                print(json.dumps(row), file=file, flush=True)
            progress.update(len(chosen))
    # A text that ends with its first token has no rounds, so there is no size to choose.
    used = [number for number in range(len(prompts)) if any(found[number][0])]
    logits = np.stack([last_logits(params, ids[number]) for number in used])
    context = np.array([len(ids[number]) for number in used])
    domains = np.array([prompts[number].domain for number in used])
    return Answers(
        logits, [found[number] for number in used], context, np.asarray(kept, np.int32), domains
    ).choose(sizes)


def _open(path: Path, ids: list[list[int]], described: dict) -> tuple[dict[int, list], list[int]]:
    """Read ({prompt number: committed}, sizes) from a file, or begin a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        path.write_text(json.dumps(described) + "\n")
        return {}, described["sizes"]
    header, *rows = map(json.loads, path.read_text().splitlines())
    if header | {"sizes": None} != described | {"sizes": None} or not set(
        described["sizes"]
    ) <= set(header["sizes"]):
        raise ValueError(
            f"{path} was made with {header}, not {described}: give another folder, or delete it"
        )
    rows = [row for row in rows if row["prompt"] < len(ids)]
    if any(row["name"] != _name(ids[row["prompt"]]) for row in rows):
        raise ValueError(f"{path} was made with other prompts: give another folder, or delete it")
    return {row["prompt"]: row["committed"] for row in rows}, header["sizes"]


def _name(ids: list[int]) -> str:
    return hashlib.sha256(str(ids).encode()).hexdigest()[:8]
