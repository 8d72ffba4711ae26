"""Find the target among the tensors of a model of text and images, or of one with a draft head."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from jaxspec.io.files.tensors import RenamedTensors, Tensors
from jaxspec.io.quantised.tensors import QuantisedTensors

# Beginnings of names: in files of transformers 5, in those of 4 -> in files of the text model alone.
_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "model.language_model.": "model.",
        "language_model.model.": "model.",
        "language_model.lm_head.": "lm_head.",
    }
)
_MTP = "mtp."
_PLAIN = ("model.embed_tokens.", "model.layers.", "model.norm.", "lm_head.")
_LOG = logging.getLogger(__name__)


class TextPart(RenamedTensors):
    """The text model's tensors. None of them are packed."""

    packed: frozenset[str] = frozenset()


def open_text(read: Tensors) -> Tensors:
    """Return the text model's tensors under the names that they have where it is alone.

    The log says how many others are left out, and how many of a head for multi-token prediction.
    """
    if not any(name.startswith((*_PREFIXES, _MTP)) for name in read):
        return read
    is_idle = read.is_idle if isinstance(read, QuantisedTensors) else lambda name: False
    alone = not any(name.startswith(tuple(_PREFIXES)) for name in read)
    names, others, drafts = {}, 0, 0
    for name in read:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if name.startswith(_MTP):
            drafts += 1
        elif prefix is not None and not is_idle(name):
            names[_PREFIXES[prefix] + name[len(prefix) :]] = name
        elif name.startswith(_PLAIN) or (alone and not is_idle(name)):
            names[name] = name
        elif prefix is None and not alone:
            others += 1
    if drafts:
        _LOG.warning("%d tensors of the model's own draft head (mtp.*) are not used", drafts)
    if others:
        _LOG.warning("%d tensors beside the text model are not used", others)
    return TextPart(read, names)
