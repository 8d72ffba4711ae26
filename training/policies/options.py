"""Options that recipes of policies share: the models, and the prompts that they answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jaxspec
from jaxspec.call.text.token_ids import to_ids
from jaxspec.core.params import Params
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer


@dataclasses.dataclass(kw_only=True)
class ModelsToLoad:
    """A target and its drafter.

    Attributes:
      drafter: one that ships with the target, a directory or a hub id.
      target: `mini`, a directory or a hub id.
      dtype: of the weights of both; None picks one that suits the device.
    """

    drafter: str
    target: str = "mini"
    dtype: str | None = None

    def load(self) -> Params:
        """Load both."""
        return jaxspec.load(self.target, drafter=self.drafter, dtype=self.dtype)


@dataclasses.dataclass(kw_only=True)
class PromptsToAnswer(ModelsToLoad):
    """The models, and prompts for them.

    Attributes:
      prompts: JSON Lines of prompts, see `jaxspec.io.text.prompt_files.read_prompts`.
      limit: prompts of each domain.
      only: use the prompts of these domains alone; none for all.
      chat: pass prompts as a user's chat message.
      max_new_tokens: of each answer.
    """

    prompts: Path
    limit: int | None = 32
    only: tuple[str, ...] = ()
    chat: bool = False
    max_new_tokens: int = 128

    def read(self, params: Params) -> list[LabelledPrompt]:
        """Read the prompts for the target of `params`."""
        tokenizer = _load_tokenizer(params)
        found = read_prompts(self.prompts, tokenizer, limit=self.limit, chat=self.chat)
        known = dict.fromkeys(prompt.domain for prompt in found)
        for domain in self.only:
            if domain not in known:
                raise ValueError(
                    f"{self.prompts} has no domain {domain!r}: {choose_one(domain, known)}"
                )
        return [one for one in found if not self.only or one.domain in self.only]


def encode_prompts(params: Params, prompts: Sequence[LabelledPrompt]) -> list[list[int]]:
    """Encode prompts as token ids for the target of `params`."""
    tokenizer = _load_tokenizer(params)
    return [list(to_ids(prompt.content, tokenizer, params.spec.target)) for prompt in prompts]


def _load_tokenizer(params: Params):
    return load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
