"""What a drafter records of its training: the target, to detect wrong pairings, and the cost."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.io.files.atomic import write_json
from jaxspec.io.files.json_files import read_json

# Where huggingface_hub keeps a snapshot: models--OWNER--NAME/snapshots/REVISION.
_SNAPSHOT = re.compile(r"models--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})")


class Provenance(NamedTuple):
    """A drafter's target; None is unknown.

    Attributes:
      target: hub id, or the last part of a local directory's name.
      revision: commit of the hub snapshot.
      tokenizer: SHA-256 of its tokenizer.json.
      chat_template: SHA-256 of its chat template's text.
    """

    target: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None

    def to_hf(self) -> dict[str, Any]:
        """Return the fields as entries of the `jaxspec` object in config.json."""
        return {
            "target": self.target,
            "target_revision": self.revision,
            "tokenizer_sha256": self.tokenizer,
            "chat_template_sha256": self.chat_template,
        }


def recorded(hf: dict[str, Any]) -> Provenance:
    """Read the target that a drafter's config.json names.

    It is in the `jaxspec` object, else in the speculators schema's `verifier`.
    """
    own = hf.get("jaxspec") or {}
    verifier = (hf.get("speculators_config") or {}).get("verifier") or {}
    return Provenance(
        own.get("target") or verifier.get("name_or_path"),
        own.get("target_revision"),
        own.get("tokenizer_sha256"),
        own.get("chat_template_sha256"),
    )


def of_target(directory: str | os.PathLike) -> Provenance:
    """Make the record of the target in `directory`, which may be in the hub's cache."""
    directory = Path(directory)
    found = _SNAPSHOT.search(directory.absolute().as_posix())
    name = found["name"].replace("--", "/") if found else directory.absolute().name
    tokenizer = directory / "tokenizer.json"
    template = chat_template(directory)
    return Provenance(
        name,
        found["revision"] if found else None,
        hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else None,
        hashlib.sha256(template.encode()).hexdigest() if template else None,
    )


def chat_template(directory: Path) -> str | None:
    """Read the text of a model's chat template; return None if it has none.

    It is a file of its own or a field of tokenizer_config.json.
    """
    own = directory / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    config = directory / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.is_file() else None
    # Older tokenizers hold several named templates; the first one called default is used.
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((x.get("template") for x in named if x.get("name") == "default"), None)
    return template if isinstance(template, str) else None


# Optimizer steps; rows that they read; tokens in these rows; minutes of training, on any machine.
COSTS = ("steps", "rows", "tokens", "minutes")


def read_training_cost(directory: str | os.PathLike) -> dict[str, float] | None:
    """Read the cost of training from a drafter's directory: numbers by `COSTS`, or None."""
    own = read_json(Path(directory) / "config.json").get("jaxspec")
    found = own.get("training") if isinstance(own, dict) else None
    if not isinstance(found, dict):
        return None
    return {key: found[key] for key in COSTS if isinstance(found.get(key), int | float)} or None


def write_training_cost(directory: str | os.PathLike, cost: Mapping[str, float]) -> None:
    """Add the cost of training to the config.json in `directory`.

    Raises:
      ValueError: a key is not one of `COSTS`.
    """
    unknown = [key for key in cost if key not in COSTS]
    if unknown:
        raise ValueError(f"unknown part of a training cost {unknown[0]!r}: give {', '.join(COSTS)}")
    path = Path(directory) / "config.json"
    hf = read_json(path)
    own = hf.get("jaxspec") or {}
    write_json(path, hf | {"jaxspec": own | {"training": dict(cost)}})
