"""The one record by which the rest of the library knows a drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.format import Format


def _keep(config: Any, depth: int) -> Any:
    """`config` itself, of drafters whose rounds may be cut short without another network."""
    return config


@dataclasses.dataclass(frozen=True, eq=False)
class DrafterRecord:
    """What a drafter is called, what it is made of and which choices suit it.

    Attributes:
      name: what a drafter of this kind is called where it is loaded alone, such as `eagle3`.
      config: class of its config: frozen and hashable, with the fields of
        `jaxspec.core.config.DrafterConfig` and `depth`.
      make: config -> bundle of functions; called once for equal configs.
      owns: config -> whether it is this drafter's, where several records share a config class;
        None: all configs of the class are.
      compared: names of the builders that `jaxspec bench --methods all` measures.
      further: names of builders that work as well.
      default_builder: builder of a decode call that names none.
      files: its file format; None: it has no files.
      preference: the loaded drafter of the lowest rank is the default method.
      resize: (config, depth) -> config whose rounds draft paths of `depth` tokens.
      blocks: it drafts blocks of a chosen size. Calls give `block_size` in place of `depth`,
        policies may choose sizes, and `Drafter.start` takes `block`.
      causal_slots: no slot of a step depends on later ones, so that slots beyond the tree's depth
        need not be computed.
      retrieval: it looks tokens up instead of computing a distribution: it runs no forward, has
        nothing to rank and often proposes nothing.
      weightless: TargetConfig -> config, of a drafter without weights, which every target then has.
      rewind: (state, length int32 [B]) -> the state after each sequence's first `length` tokens,
        from the state after all of them; None: the state does not tell.
      page: Markdown page that describes it, relative to `jaxspec/drafters`.
      peer_method: builder, budget and settings with which `jaxspec bench peers` races it, as in
        `tree@8/w2`; None: it does not take part.
      assistant: it is a language model of its own, so that transformers can run it as an assistant.
    """

    name: str
    config: type
    make: Callable[[Any], Drafter]
    owns: Callable[[Any], bool] | None = None
    compared: tuple[str, ...] = ("chain",)
    further: tuple[str, ...] = ()
    default_builder: str = "chain"
    files: Format | None = None
    preference: int = 2
    resize: Callable[[Any, int], Any] = _keep
    blocks: bool = False
    causal_slots: bool = False
    retrieval: bool = False
    weightless: Callable[[TargetConfig], Any] | None = None
    rewind: Callable[[Any, Any], Any] | None = None
    page: str | None = None
    peer_method: str | None = None
    assistant: bool = False

    @property
    def builders(self) -> tuple[str, ...]:
        """Names of all builders that are listed as suitable."""
        return self.compared + self.further
