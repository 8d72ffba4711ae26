"""Text records, packed token streams, and batches that are a pure function of the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxspec.io.text.json_records import BrokenRecord, read_objects


class DataError(ValueError):
    """A data file is missing or not in the expected form."""


def read_documents(path: Path | str) -> dict[str, list[str]]:
    """Read texts by domain from JSON Lines, or an array, of {"domain", "text"}, gzipped or not.

    Raises:
      DataError: the file is missing, empty, not JSON Lines, or lacks a key; the message names the
        line.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"no data file at {path}: pass --data PATH to JSON Lines of {{domain, text}}"
        )
    documents: dict[str, list[str]] = {}
    place = str(path)
    try:
        for where, record in read_objects(path):
            place = where
            documents.setdefault(record["domain"], []).append(record["text"])
    except BrokenRecord as error:
        raise DataError(
            f"{path}, line {error.line}: expected a JSON object with 'domain' and 'text' "
            f"({error.fault})"
        ) from None
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{place}: expected a JSON object with 'domain' and 'text' ({error})"
        ) from error
    if not documents:
        raise DataError(f"{path} holds no records: give one JSON object per line")
    return documents


def load_bpe_tokenizer(folder: Path | str):
    """Load the `tokenizers.Tokenizer` in `folder`, without truncation or padding."""
    from tokenizers import Tokenizer

    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise DataError(
            f"no tokenizer at {path}: make one with python -m jaxspec.training.tokenizer"
        )
    return Tokenizer.from_file(str(path))


def make_token_stream(texts: list[str], tokenizer, eos: int) -> np.ndarray:
    """Encode documents into one stream uint16 [n], with `eos` after each document."""
    parts = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        parts += [np.asarray(encoding.ids, np.uint16), np.asarray([eos], np.uint16)]
    return np.concatenate(parts)


def cut_windows(stream: np.ndarray, length: int) -> np.ndarray:
    """Cut a stream into windows [n, length + 1].

    Neighbours share one token, so that each token is predicted once.
    """
    count = (len(stream) - 1) // length
    if count < 1:
        raise DataError(
            f"a domain has only {len(stream)} tokens, fewer than one window of {length}: add text"
        )
    starts = np.arange(count)[:, None] * length
    return stream[starts + np.arange(length + 1)]


class MixedBatches:
    """Batches with a fixed number of windows from each domain.

    `batches(step)` depends only on `seed` and `step`. Each domain is read in a new random order in
    every epoch, so a short domain is repeated and a long one is not.

    Args:
      windows: integer arrays [n, T + 1] by domain.
      rows: number of windows of each domain in a batch.
      seed: seed of the orders.
    """

    def __init__(self, windows: dict[str, np.ndarray], rows: dict[str, int], seed: int):
        unknown = sorted(set(rows) - set(windows))
        if unknown:
            raise DataError(
                f"the data has no domain {unknown[0]!r}: it has {', '.join(sorted(windows))}"
            )
        self.windows, self.rows, self.seed = windows, rows, seed
        self._orders: dict[tuple[str, int], np.ndarray] = {}

    def _order(self, domain: str, epoch: int) -> np.ndarray:
        key = (domain, epoch)
        if key not in self._orders:
            number = sorted(self.windows).index(domain)
            generator = np.random.default_rng((self.seed, number, epoch))
            self._orders[key] = generator.permutation(len(self.windows[domain]))
        return self._orders[key]

    def __call__(self, step: int) -> np.ndarray:
        """int32 [sum(rows), T + 1]."""
        chosen = []
        for domain, count in self.rows.items():
            size = len(self.windows[domain])
            for index in range(step * count, (step + 1) * count):
                chosen.append(
                    self.windows[domain][self._order(domain, index // size)[index % size]]
                )
        return np.stack(chosen).astype(np.int32)
