"""From files of records to batches with anchors, deterministic and resumable at any step.

rows = load_rows(DataOptions(files=(Path("regenerated.jsonl"),)), "mini")
batches = AnchorBatches(rows, batch_size=16, anchors=64, block_size=8, seed=0)
batches(0)["tokens"]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from .chat import make_format
from .documents import DataError
from .encode import encode
from .packing import PackedRows, cut_sample, pack_rows
from .samples import Sample, read_records


@dataclasses.dataclass
class DataOptions:
    """The data to train on.

    Attributes:
      files: JSON Lines or JSON arrays, gzipped or not, in the forms of `training.data.samples`.
      length: tokens S of a row. Shorter samples share rows; see `long` for others.
      long: what to do with samples longer than a row: `split` them into pieces that are documents
        of their own, or `truncate` them. `auto` splits plain text and truncates samples that have a
        prompt; see `training.data.packing.cut_sample`.
      chat_template: file with a Jinja template, instead of the tokenizer's own.
      enable_thinking: for templates that know it (Qwen3); give the value used in decoding.
      raw_prompts: treat records of prompt and response as plain text, not as a chat.
      limit: number of records to read from all files together, spread evenly over them.
      domains: share of the tokens for each domain, for example math=0.4. Surplus tokens and other
        domains are left out.
      rows: number of rows to keep, chosen at random.
      seed: seed of these choices.
      roles: names of roles that the files have beside the usual ones, and what they are: `user`,
        `assistant`, `system` or `tool`.
    """

    files: tuple[Path, ...]
    length: int = 512
    long: Literal["auto", "split", "truncate"] = "auto"
    chat_template: Path | None = None
    enable_thinking: bool | None = None
    raw_prompts: bool = False
    limit: int | None = None
    domains: dict[str, float] | None = None
    rows: int | None = None
    seed: int = 0
    roles: dict[str, str] | None = None


def load_samples(options: DataOptions, tokenizer) -> list[Sample]:
    """Load samples of all files, uncut; the arguments are those of `load_packed_rows`."""
    if not options.files:
        raise DataError("no data files: name at least one")
    chat = make_format(
        tokenizer, options.chat_template, options.enable_thinking, options.raw_prompts
    )
    records = [record for path in options.files for record in read_records(path, options.roles)]
    if options.limit is not None:
        if options.limit < 1:
            raise DataError(f"limit is {options.limit}: give at least 1 record")
        records = [
            records[i * len(records) // options.limit]
            for i in range(min(options.limit, len(records)))
        ]
    return encode(records, chat)


def load_packed_rows(options: DataOptions, tokenizer) -> PackedRows:
    """Read, tokenise, cut and pack the files, and print one line about the result.

    Args:
      options: see `DataOptions`.
      tokenizer: a directory that holds one (`params.spec.tokenizer`), a name as for `jaxspec.load`,
        a tokenizer of `transformers`, or None if all records are token ids.

    Raises:
      DataError: see `training.data.samples.read_records` and `training.data.encode.encode`; or no
        token to train on is left.
    """
    if options.length < 2:
        raise DataError(f"length is {options.length}: a row needs at least 2 tokens")
    samples = load_samples(options, tokenizer)
    pieces = [cut_sample(sample, options.length, options.long) for sample in samples]
    empty = sum(not found for found in pieces)
    kept = [piece for found in pieces for piece in found]
    if not kept:
        raise DataError(
            f"no sample has a token to learn among its first {options.length}: raise length"
        )
    if options.domains:
        kept = balance(kept, options.domains, options.seed)
    rows = pack_rows(kept, options.length)
    if options.rows is not None and options.rows < len(rows.tokens):
        chosen = np.sort(
            np.random.default_rng((options.seed, 1)).permutation(len(rows.tokens))[: options.rows]
        )
        rows = PackedRows(*(array[chosen] for array in rows))
    long = sum(len(sample.tokens) > options.length for sample in samples)
    tqdm.write(
        f"data: {len(samples)} samples, {long} of them longer than a row of {options.length}, "
        f"{empty} left out with nothing to "
        f"learn in a row; {len(rows.tokens)} rows, {rows.efficiency:.1%} filled, "
        f"{int(rows.loss_mask.sum())} tokens to learn"
    )
    return rows


def balance(samples: Sequence[Sample], shares: dict[str, float], seed: int) -> list[Sample]:
    """Choose samples at random, in their order, so that domains have the given shares of tokens.

    The domain that is scarcest for its share is used up. Nothing is repeated.

    Raises:
      DataError: a share is not positive, or of a domain that no sample has.
    """
    found: dict[str | None, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(sample.domain, []).append(index)
    for name, share in shares.items():
        if not share > 0:
            raise DataError(f"the share of domain {name!r} is {share}: give a number above 0")
        if name not in found:
            raise DataError(
                f"the data has no domain {name!r}: it has {', '.join(sorted(map(str, found)))}"
            )
    sizes = np.asarray([len(sample.tokens) for sample in samples])
    total = min(sizes[found[name]].sum() / share for name, share in shares.items())
    chosen: list[int] = []
    for number, (name, share) in enumerate(sorted(shares.items())):
        order = np.random.default_rng((seed, 0, number)).permutation(found[name])
        chosen += order[
            : int(np.searchsorted(sizes[order].cumsum(), share * total * (1 - 1e-9))) + 1
        ].tolist()
    return [samples[index] for index in sorted(chosen)]


def find_anchors(
    segments: np.ndarray, loss_mask: np.ndarray, *, after_prompt: bool = False
) -> np.ndarray:
    """Find the places p where a block may begin: bool [..., S - 1].

    Tokens p and p + 1 belong to one document, and p + 1 is to be predicted. So p may be the last
    token of a prompt, where the first round of decoding begins.

    Args:
      segments, loss_mask: [..., S], as in `PackedRows`.
      after_prompt: p is to be predicted too, as in DeepSpec.
    """
    learnt = loss_mask != 0
    one = (segments[..., 1:] == segments[..., :-1]) & (segments[..., 1:] > 0)
    return learnt[..., 1:] & one & (learnt[..., :-1] | (not after_prompt))


class AnchorBatches:
    """Batches of rows with random anchors; `batches(step)` depends only on the step and the seed.

    Every epoch goes through all rows in a new order with new anchors. A batch may hold the end of
    one epoch and the beginning of the next. Anchors are drawn without replacement among those of
    `find_anchors`.

    Args:
      rows: from `load_packed_rows`.
      batch_size: number B of rows in a batch.
      anchors: number A of anchors per row. Rows with fewer candidates are filled up, with `keep`
        False.
      block_size: slots of the drafter's block, the anchor included; a row must hold one.
      seed: seed of the order and the anchors.
      after_prompt: see `find_anchors`.
    """

    def __init__(
        self,
        rows: PackedRows,
        batch_size: int,
        anchors: int,
        block_size: int,
        seed: int,
        after_prompt: bool = False,
    ):
        import grain

        for name, value in (("batch_size", batch_size), ("anchors", anchors)):
            if value < 1:
                raise DataError(f"{name} is {value}: give at least 1")
        length = rows.tokens.shape[1]
        if not 2 <= block_size <= length:
            raise DataError(f"block_size is {block_size}: give 2 to {length}, the tokens of a row")
        self.rows, self.anchors, self.after_prompt = rows, anchors, after_prompt
        order = grain.MapDataset.source(range(len(rows.tokens))).seed(seed).shuffle().repeat()
        self.dataset = order.random_map(self._row).batch(batch_size)

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        """Make the batch of step 0, 1, …

        Returns:
          tokens, segments, positions int32 [B, S] and loss_mask bool [B, S] as in `PackedRows`;
          anchors int32 [B, A], ascending; keep bool [B, A], False for fillers that must not count;
          rows int32 [B], the rows' numbers.
        """
        return self.dataset[step]

    def _row(self, row: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        fields = {name: array[row] for name, array in self.rows._asdict().items()}
        candidates = np.flatnonzero(
            find_anchors(fields["segments"], fields["loss_mask"], after_prompt=self.after_prompt)
        )
        count = min(self.anchors, len(candidates))
        drawn = np.zeros(self.anchors, np.int32)
        drawn[:count] = np.sort(generator.choice(candidates, count, replace=False))
        return {
            **fields,
            "anchors": drawn,
            "keep": np.arange(self.anchors) < count,
            "rows": np.int32(row),
        }
