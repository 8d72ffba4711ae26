"""Everything a decode call needs, as one pytree: weights are leaves, the spec is static."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar

import flax.struct
import jax

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import Layout, find_layout
from jaxspec.core.runtime.near_miss import choose_one

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
    def drafter_names(self) -> tuple[str, ...]:
        """All names that `drafter=` of a call may have with this model, `ar` first."""
        loaded = dict(self.drafters)
        return ("ar", *loaded, *(name for name in WEIGHTLESS if name not in loaded))

    @property
    def default_drafter(self) -> str:
        """The drafter of calls that name none: the first one, or `ar` if none is loaded."""
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
            f"unknown drafter {name!r}: {choose_one(name, self.drafter_names)}, or load another one"
        )


class Params(flax.struct.PyTreeNode):
    """Weights of a target and of its drafters, as a pytree.

    Attributes:
      target: variables of `Transformer`; with quantised weights they include a collection of
        scales, see `jaxspec.targets.layouts.quant`.
      drafters: {name: variables}, the default drafter first: `list(params.drafters)` names them.
      spec: static description.
    """

    target: Any
    drafters: dict[str, Any]
    spec: Spec = flax.struct.field(pytree_node=False)

    # Loads what `Spec.tokenizer` names. Set where both are known, since `jaxspec.io` is above.
    load_tokenizer: ClassVar[Callable[[str], Any]]

    def __post_init__(self) -> None:
        """Put the drafters into the spec's order: JAX sorts the keys of each dict that it maps."""
        names = [name for name, _ in self.spec.drafters] if isinstance(self.drafters, dict) else []
        if self.drafters and len(names) > 1 and set(names) == set(self.drafters):
            object.__setattr__(self, "drafters", {name: self.drafters[name] for name in names})

    def __repr__(self) -> str:
        """Describe the weights in a line; the generated form would print all of them."""
        drafters = [f"{name} ({_count(self.drafter(name))})" for name, _ in self.spec.drafters]
        target, found = self.spec.target, (str(leaf.dtype) for leaf in _arrays(self.target))
        dtypes = ", ".join(sorted(dict.fromkeys(found)))
        return (
            f"Params({target.family}, {target.num_layers} layers, {_count(self.target)} parameters "
            f"({dtypes}); drafters: {', '.join(drafters) or 'none'})"
        )

    @property
    def dtype(self) -> Any:
        """The dtype of the target's computations and caches: that of unquantised weights."""
        return self.target["params"]["norm"]["scale"].dtype

    @property
    def tokenizer(self) -> Any:
        """The model's `jaxspec.io.text.tokenizer.Tokenizer`, loaded once; None if it has none."""
        return Params.load_tokenizer(self.spec.tokenizer) if self.spec.tokenizer else None

    @property
    def layout(self) -> Layout | None:
        """Where the weights lie, if several devices share them; they must not be traced."""
        return find_layout(self.target["params"]["norm"]["scale"], self.spec.target.vocab_size)

    def drafter(self, name: str) -> Any:
        """Return the variables of the drafter called `name`; {} if it has none."""
        return self.drafters.get(name, {})

    def with_drafter(self, name: str, config: Any, variables: Any) -> Params:
        """Return these parameters with one more drafter, which becomes the default.

        Args:
          name: name of the drafter; replaces a drafter of the same name.
          config: its static description, of a class that is registered (`jaxspec.drafters`).
          variables: {"params": ...}, see `jaxspec.drafters.base`.
        """
        others = tuple(pair for pair in self.spec.drafters if pair[0] != name)
        spec = dataclasses.replace(self.spec, drafters=((name, config), *others))
        return self.replace(drafters={**self.drafters, name: variables}, spec=spec)


def check_params(params: Any) -> None:
    """Accept what `jaxspec.load` returns.

    Raises:
      TypeError: it is anything else, such as the name of a model.
    """
    if isinstance(params, Params):
        return
    if isinstance(params, str | os.PathLike):
        name = repr(os.fspath(params))
        raise TypeError(f"params is {name}: load the model first, params = jaxspec.load({name})")
    found = type(params).__name__
    raise TypeError(f"params is of type {found}: give what jaxspec.load returns")


def _arrays(variables: Any) -> list[Any]:
    """List the leaves that have a shape: transformations put other things in their place."""
    return [leaf for leaf in jax.tree.leaves(variables) if hasattr(leaf, "size")]


def _count(variables: Any) -> str:
    """Count parameters, as in `135 M`."""
    number = float(sum(leaf.size for leaf in _arrays(variables)))
    for unit in ("", " k", " M", " B"):
        if number < 1000 or unit == " B":
            break
        number /= 1000
    return f"{number:.3g}{unit}"
