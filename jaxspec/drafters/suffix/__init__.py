"""Suffix decoding: the tree of what followed earlier occurrences of the text's last tokens."""

from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.suffix.drafter import SuffixConfig, make_suffix_drafter

SUFFIX = DrafterRecord(
    name="suffix",
    config=SuffixConfig,
    make=make_suffix_drafter,
    compared=("chain", "lattice"),
    further=("static", "dynamic"),
    default_builder="lattice",
    one_forward=True,
    retrieval=True,
    weightless=lambda target: SuffixConfig(vocab_size=target.vocab_size),
    page="suffix/README.md",
)
