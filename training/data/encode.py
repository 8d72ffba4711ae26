"""Encode records into token ids and loss masks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from .chat import ChatFormat, Piece, split_record
from .documents import DataError
from .samples import DataRecord, Sample

# Characters per call of the tokenizer: enough to keep its threads busy, few enough for its memory.
_CHARACTERS = 4_000_000


def encode(records: Sequence[DataRecord], chat: ChatFormat) -> list[Sample]:
    """Encode records in order; a conversation may give several samples
    (`training.data.chat.split_record`).

    Plain text is trained on as a whole, with the end-of-text token after it, and so is a response
    without a chat template. Warns once about answers that the chat template does not begin with its
    own generation prompt.

    Raises:
      DataError: a record cannot be rendered or has no token to train on; the message names file
        and line.
    """
    samples: list[Sample] = []
    chunk: list[tuple[DataRecord, tuple[Piece, ...]]] = []
    noted: list[str] = []
    size = 0
    for record in records:
        if record.tokens is not None:
            samples += _encode_pieces(chunk, chat)
            samples.append(_exact(record, chat))
            chunk, size = [], 0
            continue
        for pieces, notes in split_record(record, chat):
            chunk.append((record, pieces))
            noted += notes
            size += sum(len(piece.text) for piece in pieces)
        if size > _CHARACTERS:
            samples += _encode_pieces(chunk, chat)
            chunk, size = [], 0
    if noted:
        warnings.warn(
            f"{len(noted)} answers (the first: {noted[0]}) do not begin with the chat template's "
            "generation prompt and are "
            "learnt from where they part with it: for Qwen3, set enable_thinking as in the answers",
            stacklevel=2,
        )
    return samples + _encode_pieces(chunk, chat)


def _exact(record: DataRecord, chat: ChatFormat) -> Sample:
    tokens = np.asarray(record.tokens, np.int32)
    if chat.tokenizer is not None and tokens.max() >= len(chat.tokenizer):
        raise DataError(
            f"{record.place}: token {tokens.max()} is outside the tokenizer's "
            f"{len(chat.tokenizer)}: the record was made for another model"
        )
    return _checked(
        Sample(tokens, np.arange(len(tokens)) >= record.prompt_length, record.domain, record.place)
    )


def _encode_pieces(
    documents: list[tuple[DataRecord, tuple[Piece, ...]]], chat: ChatFormat
) -> list[Sample]:
    if not documents:
        return []
    backend = chat.tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    encoded: dict[Piece, tuple[np.ndarray, np.ndarray]] = {}
    for special in (True, False):
        for spans in (True, False):
            every = (piece for _, parts in documents for piece in parts)
            pieces = [
                piece for piece in every if piece.special == special and bool(piece.spans) == spans
            ]
            # Offsets are only computed if a span needs them.
            encode_batch = backend.encode_batch if spans else backend.encode_batch_fast
            found = encode_batch([piece.text for piece in pieces], add_special_tokens=special)
            for piece, encoding in zip(pieces, found, strict=True):
                encoded[piece] = np.asarray(encoding.ids, np.int32), _piece_mask(encoding, piece)
    return [
        _sample(record, pieces, [encoded[piece] for piece in pieces], chat)
        for record, pieces in documents
    ]


def _piece_mask(encoding, piece: Piece) -> np.ndarray:
    if piece.spans is None or not piece.spans:
        return np.full(len(encoding.ids), piece.spans is None)
    return span_mask(np.asarray(encoding.offsets).reshape(-1, 2), piece.spans)


def span_mask(offsets: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Mark the tokens whose characters all lie inside one of `spans`.

    Args:
      offsets: int [n, 2], characters of each token as given by `tokenizers`. Spaces at a token's
        ends may be missing, and the tokens of one character share its range.
      spans: ranges of characters.

    Returns:
      bool [n].
    """
    start, stop = offsets.T
    # A token's missing spaces begin where the token before it ended.
    begin = (
        np.minimum(start, np.concatenate([[0], np.maximum.accumulate(stop)[:-1]]))
        if len(start)
        else start
    )
    mask = np.zeros(len(offsets), bool)
    for low, high in spans:
        mask |= (begin >= low) & (stop <= high)
    return mask


def _sample(
    record: DataRecord, pieces: tuple[Piece, ...], encoded: list, chat: ChatFormat
) -> Sample:
    tokens, mask = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
    eos = chat.tokenizer.eos_token_id
    if pieces[-1].spans is None and eos is not None and tokens[-1:].tolist() != [eos]:
        tokens, mask = np.append(tokens, np.int32(eos)), np.append(mask, True)
    return _checked(Sample(tokens, mask, record.domain, record.place))


def _checked(sample: Sample) -> Sample:
    # No token predicts the first one.
    if not sample.loss_mask[1:].any():
        raise DataError(
            f"{sample.place}: no token to train on: the rendered text has none of the assistant's"
        )
    return sample
