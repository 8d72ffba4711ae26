"""The text of a stream as it appears, with accepted draft tokens in colour."""

from __future__ import annotations

from jaxspec.call.stream import StreamedRound
from jaxspec.call.text.detokenize import Decode, continue_after

_GREEN, _RESET = "\x1b[32m", "\x1b[0m"


def mark_round(part: StreamedRound, decode: Decode, *, colour: bool = False) -> str:
    """Return a round's text, with what the drafter proposed in green.

    The last token of a round is the target's own. Text that was held back until this round counts
    as drafted.

    Args:
      part: from `jaxspec.call.stream.stream_rounds`.
      decode: token ids to text.
      colour: add ANSI colours; otherwise the text is returned as it is.
    """
    text = part.text or ""
    if not (colour and part.drafted):
        return text
    own = continue_after(decode, part.tokens[:-1])(part.tokens[-1:])
    drafted = text.removesuffix(own)
    return f"{_GREEN}{drafted}{_RESET}{text[len(drafted) :]}" if drafted else text
