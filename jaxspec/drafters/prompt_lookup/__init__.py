"""Prompt lookup: copy the tokens that followed an earlier occurrence of the text's last tokens."""

from jaxspec.drafters.prompt_lookup.drafter import PromptLookupConfig, make_lookup_drafter
from jaxspec.drafters.record import DrafterRecord

PROMPT_LOOKUP = DrafterRecord(
    name="prompt_lookup",
    config=PromptLookupConfig,
    make=make_lookup_drafter,
    retrieval=True,
    weightless=lambda target: PromptLookupConfig(vocab_size=target.vocab_size),
    peer_method="chain@8",
    page="prompt_lookup/README.md",
)
