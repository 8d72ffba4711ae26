"""Everything a decode call needs, as one pytree: weights are leaves, the static spec is part of the
tree's structure.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct

from jaxspec.core.config import PROMPT_LOOKUP, PromptLookupConfig, TargetConfig


@dataclasses.dataclass(frozen=True)
class Spec:
    """Static description of a target with its drafters.

    Attributes:
      target: architecture of the target.
      drafters: (name, config) pairs; the first is the default.
      eos: token ids that end a text.
      tokenizer: directory with the tokenizer's files, or None when prompts are token ids.
    """

    target: TargetConfig
    drafters: tuple[tuple[str, Any], ...] = ()
    eos: tuple[int, ...] = ()
    tokenizer: str | None = None

    def drafter(self, name: str):
        """Config of the drafter called `name`; ValueError names those that are loaded."""
        found = {PROMPT_LOOKUP: PromptLookupConfig(self.target.vocab_size)} | dict(self.drafters)
        if name not in found:
            names = ["ar", *dict(self.drafters), PROMPT_LOOKUP]
            raise ValueError(
                f"unknown method {name!r}: choose one of {names} or load another drafter"
            )
        return found[name]


@flax.struct.dataclass
class Params:
    """Weights of a target and of its drafters; jit over it, donate it, shard it, save it.

    Attributes:
      target: variables of `Transformer`; quantised ones have a collection of scales, see
        `jaxspec.targets.quant`.
      drafters: {name: variables}.
      spec: static.
    """

    target: Any
    drafters: dict[str, Any]
    spec: Spec = flax.struct.field(pytree_node=False)

    @property
    def dtype(self) -> Any:
        """What the target computes and caches in: its weights' dtype where they are not quantised
        (`jaxspec.targets.quant`).
        """
        return self.target["params"]["norm"]["scale"].dtype

    def drafter(self, name: str) -> Any:
        """Variables of the drafter called `name`; {} of one that has none."""
        return self.drafters.get(name, {})
