"""Print samples as they will be trained on, with the tokens to predict marked.

    python -m jaxspec.training.preview --tokenizer mini --files regenerated.jsonl --limit 3

The marks are green on a terminal and [[ ]] elsewhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np

from .data.chat import make_format
from .data.documents import DataError
from .data.encode import encode
from .data.packing import cut_sample
from .data.pipeline import DataOptions
from .data.samples import Sample, read_records
from .run.command import one_line_errors

_COLOUR, _MARKS = ("\x1b[32m", "\x1b[0m"), ("[[", "]]")


@dataclasses.dataclass
class PreviewOptions(DataOptions):
    """Options of the preview. `domains`, `rows` and `seed` have no effect here.

    Attributes:
      tokenizer: a model's name, directory or hub id.
      limit: number of records to show, the first ones of the files.
    """

    files: tuple[Path, ...] = ()
    tokenizer: str = "mini"
    limit: int | None = 3


def format_sample(sample: Sample, tokenizer, options: DataOptions, marks: tuple[str, str]) -> str:
    """Format one sample: a heading with place and counts, the marked text, and what is cut off."""
    learnt, size = int(sample.loss_mask.sum()), len(sample.tokens)
    lines = [f"--- {sample.place}: {size} tokens, {learnt} to learn"]
    pieces = cut_sample(sample, options.length, options.long)
    kept = sum(len(piece.tokens) for piece in pieces)
    if not pieces:
        lines.append(f"--- left out: nothing to learn among the first {options.length} tokens")
    elif len(pieces) > 1:
        lines.append(f"--- split into {len(pieces)} documents of at most {options.length} tokens")
    lines += [_marked(piece, tokenizer, marks) for piece in pieces or [sample]]
    if pieces and kept < size:
        lines.append(f"--- cut off here at {kept} tokens; {size - kept} more are not used")
    return "\n".join(lines)


def _marked(sample: Sample, tokenizer, marks: tuple[str, str]) -> str:
    """Decode a sample, special tokens included, with `marks` around the tokens to predict."""
    if tokenizer is None:
        raise DataError("a preview needs a tokenizer, to turn tokens into text")
    changes = np.flatnonzero(np.diff(sample.loss_mask)) + 1
    text = ""
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(sample.tokens)]):
        run = tokenizer.decode(sample.tokens[start:stop].tolist(), skip_special_tokens=False)
        text += f"{marks[0]}{run}{marks[1]}" if sample.loss_mask[start] else run
    return text


def show_samples(options: DataOptions, tokenizer: str, limit: int | None) -> None:
    """Print the first `limit` records of the files.

    Args:
      options: see `training.data.pipeline.DataOptions`.
      tokenizer: a model's name, directory or hub id.
      limit: number of records; None for all.
    """
    chat = make_format(
        tokenizer, options.chat_template, options.enable_thinking, options.raw_prompts
    )
    records = [record for path in options.files for record in read_records(path, options.roles)]
    if not records:
        raise DataError("no data files: name at least one with --files")
    marks = _COLOUR if sys.stdout.isatty() else _MARKS
    for sample in encode(records[:limit], chat):
        print(format_sample(sample, chat.tokenizer, options, marks))


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        chosen = tyro.cli(PreviewOptions)
        show_samples(chosen, chosen.tokenizer, chosen.limit)
