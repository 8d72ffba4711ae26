"""Compare the files of a drafter with those of its target, without running either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.drafters.files import borrowed_tensors, find_config
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.io.weights import provenance
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.gguf_files.layout import is_gguf
from jaxspec.targets.weights import stored_name
from jaxspec.zoo.places import open_target


def compare_records(
    target: Path, directory: Path, hf: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Compare the drafter's record of its target with the actual target.

    Args:
      target: directory of the target.
      directory: directory of the drafter.
      hf: the drafter's config.json.

    Returns:
      (warnings, notes), lists of one sentence each.
    """
    made_for, here = provenance.recorded(hf), provenance.of_target(target)
    shipped = provenance.of_target(directory)
    warnings, notes = [], []
    tokenizers = {made_for.tokenizer, shipped.tokenizer} - {None, here.tokenizer}
    if here.tokenizer and tokenizers:
        name = made_for.target or "another model"
        warnings.append(
            f"the drafter was trained with another tokenizer.json ({name}'s): use the target it "
            "was trained for"
        )
    elif not (made_for.tokenizer or shipped.tokenizer) or not here.tokenizer:
        notes.append(
            "the tokenizers cannot be compared: the drafter recorded none, or the target has none"
        )
    if (
        made_for.chat_template
        and here.chat_template
        and made_for.chat_template != here.chat_template
    ):
        warnings.append(
            "the drafter was trained with another chat template: it has not learnt this form of "
            "chats"
        )
    if made_for.revision and here.revision and made_for.revision != here.revision:
        notes.append(
            f"the drafter was trained for revision {made_for.revision} of the target, this is "
            f"{here.revision}"
        )
    tokenizer, rows = (
        load_tokenizer(str(target)),
        read_entries(target / "config.json").get("vocab_size"),
    )
    if tokenizer is not None and rows and len(tokenizer) > rows:
        notes.append(
            f"the target's tokenizer has {len(tokenizer)} tokens and the target {rows} embedding "
            "rows: prompts that hold a token without a row are refused"
        )
    return warnings, notes


def compare_borrowed(target: Path, directory: Path, hf: dict[str, Any]) -> list[str]:
    """Check that the tensors of the target that are saved with the drafter equal the target's own.

    Decoding uses the target's own tensors.

    Args:
      target: directory of the target.
      directory: directory of the drafter.
      hf: the drafter's config.json.

    Returns:
      A warning for each tensor that differs.
    """
    names = borrowed_tensors(find_config(directory), hf)
    if not names:
        return []
    entries = read_entries(target / "config.json")
    config, ours = target_config(entries), open_weights(directory)
    gguf = is_gguf(target)
    theirs = open_target(target) if gguf else open_full(open_weights(target), entries)
    warnings = []
    for name, source in names.items():
        if name not in ours:
            continue
        mine = ours[name]
        other = theirs[stored_name(config, source)].astype(mine.dtype)
        common = min(len(mine), len(other))  # tables may be padded differently
        mine, other = mine[:common], other[:common]
        differ = np.flatnonzero(
            np.abs(mine.astype(np.float32) - other.astype(np.float32)).max(axis=-1) > 1e-2
        )
        if differ.size:
            warnings.append(
                f"its {name} differs from the target's in {differ.size} rows, first {differ[0]}: "
                "the target's is used"
            )
    return warnings
