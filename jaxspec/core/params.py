"""Everything a decode call needs, as one pytree: weights are leaves, the spec is static."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import Layout, find_layout

# Drafters without weights, which every target can use: {name: function from target to config}.
# `jaxspec.drafters.register` fills it in.
WEIGHTLESS: dict[str, Callable[[TargetConfig], Any]] = {}


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

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of all methods that this model can decode with, `ar` first."""
        loaded = dict(self.drafters)
        return ("ar", *loaded, *(name for name in WEIGHTLESS if name not in loaded))

    @property
    def default_method(self) -> str:
        """The method of calls that name none: the first drafter, or `ar` if none is loaded."""
        return self.drafters[0][0] if self.drafters else "ar"

    def drafter(self, name: str) -> Any:
        """Return the config of the drafter called `name`.

        Raises:
          ValueError: unknown name; the message lists the loaded ones.
        """
        loaded = dict(self.drafters)
        if name in loaded:
            return loaded[name]
        if name in WEIGHTLESS:
            return WEIGHTLESS[name](self.target)
        raise ValueError(
            f"unknown method {name!r}: choose one of {list(self.methods)} or load another drafter"
        )


class Params(flax.struct.PyTreeNode):
    """Weights of a target and of its drafters, as a pytree.

    Attributes:
      target: variables of `Transformer`; with quantised weights they include a collection of
        scales, see `jaxspec.targets.quant`.
      drafters: {name: variables}.
      spec: static description.
    """

    target: Any
    drafters: dict[str, Any]
    spec: Spec = flax.struct.field(pytree_node=False)

    @property
    def dtype(self) -> Any:
        """The dtype of the target's computations and caches: that of unquantised weights."""
        return self.target["params"]["norm"]["scale"].dtype

    @property
    def layout(self) -> Layout | None:
        """Where the weights lie, if several devices share them; they must not be traced."""
        return find_layout(self.target["params"]["norm"]["scale"], self.spec.target.vocab_size)

    def drafter(self, name: str) -> Any:
        """Return the variables of the drafter called `name`; {} if it has none."""
        return self.drafters.get(name, {})

    def with_drafter(self, name: str, config: Any, variables: Any) -> Params:
        """Return these parameters with one more drafter, which becomes the default method.

        Args:
          name: name of the drafter; replaces a drafter of the same name.
          config: its static description, of a class that is registered (`jaxspec.drafters`).
          variables: {"params": ...}, see `jaxspec.drafters.base`.
        """
        others = tuple(pair for pair in self.spec.drafters if pair[0] != name)
        spec = dataclasses.replace(self.spec, drafters=((name, config), *others))
        return self.replace(drafters={**self.drafters, name: variables}, spec=spec)
