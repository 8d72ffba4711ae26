"""Fit drafters to a target whose embedding table has another number of rows.

Published models pad their tables, each size of a family otherwise: Qwen2.5 has 151936 rows at 0.5B
and 152064 at 7B, for one tokenizer. No text uses the rows beyond its tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.files import for_target, pad_vocabulary
from jaxspec.io.text.tokenizer import Tokenizer, load_tokenizer

# Rows beyond its tokenizer's tokens that a table may have. Without the drafter's own tokenizer, more
# of them mean another vocabulary.
_PADDING = 1024


def fit_drafter(config: Any, source: Path, target: TargetConfig, model: Path) -> Any:
    """Complete a drafter's config from its target.

    Args:
      config: what the drafter's config.json says.
      source: folder of the drafter.
      target: config of the target.
      model: folder of the target.

    Raises:
      ValueError: the drafter does not fit the target, or has another tokenizer.
    """
    stored = config.vocab_size
    if (
        stored
        and stored != target.vocab_size
        and _differs_by_padding(source, model, stored, target)
    ):
        config = pad_vocabulary(config, target.vocab_size)
    return for_target(config, target)


def _differs_by_padding(source: Path, model: Path, stored: int, target: TargetConfig) -> bool:
    """Whether two tables hold the same tokens.

    Args:
      stored: rows of the drafter's table.

    Raises:
      ValueError: both have a tokenizer, and the two differ.
    """
    tokenizer, own = load_tokenizer(str(model)), load_tokenizer(str(source))
    if tokenizer is None:
        return False
    if own is not None:
        _check_same(own, tokenizer)
        return True
    tokens = min(len(tokenizer), target.vocab_size)
    return tokens <= stored <= tokens + _PADDING


def _check_same(own: Tokenizer, tokenizer: Tokenizer) -> None:
    """Raise a ValueError if two tokenizers disagree about a token; either may have more of them."""
    ours, theirs = own.list_ordinary(), tokenizer.list_ordinary()
    differ = sorted(i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i])
    if differ:
        first = differ[0]
        raise ValueError(
            "the drafter does not fit the target: its tokenizer is another one, token "
            f"{first} is {ours[first]!r} and not {theirs[first]!r}; use a drafter with the target's "
            "tokenizer"
        )
