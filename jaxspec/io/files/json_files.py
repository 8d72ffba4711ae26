"""Read files that hold one JSON object, and say in one line what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path


def read_json(path: Path) -> dict:
    """Read a JSON object from `path`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}: it is not a complete Hugging Face model directory"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__}, not a JSON object; download it again"
        )
    return content
