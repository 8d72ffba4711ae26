"""The one record by which the rest of the library knows a drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.format import Format


def _keep(config: Any, depth: int) -> Any:
    """Return `config` unchanged: these drafters can stop a round early with the same network."""
    return config


@dataclasses.dataclass(frozen=True, eq=False)
class DrafterRecord:
    """Name, functions and properties of a drafter.

    Attributes:
      name: default name of a loaded drafter of this kind, such as `eagle3`.
      config: class of its config: frozen and hashable, with the fields of
        `jaxspec.core.config.DrafterConfig` and `depth`.
      make: config -> bundle of functions; called once for equal configs.
      owns: config -> whether the config belongs to this drafter, for records that share a config
        class; None: all configs of the class belong to it.
      compared: names of the builders that `jaxspec bench --methods all` measures.
      further: names of other builders that work with it.
      default_builder: builder of a decode call that names none.
      files: file format; None: the drafter has no files.
      preference: rank; the loaded drafter with the lowest rank is the default method.
      resize: (config, depth) -> config that drafts paths of `depth` tokens in a round.
      blocks: whether it drafts blocks of a chosen size. Calls then give `block_size` instead of
        `depth`, policies may choose sizes, and `Drafter.start` takes `block`.
      causal_slots: whether no slot of a step depends on later slots; slots beyond the tree's depth
        are then not computed.
      one_forward: whether all steps of a round after the first do without a forward of the network.
      retrieval: whether it looks tokens up instead of computing a distribution: it runs no forward,
        ranks nothing and often proposes nothing.
      weightless: TargetConfig -> config of a drafter without weights, which works with every
        target; None for other drafters.
      rewind: (state, length int32 [B]) -> the state after each sequence's first `length` tokens,
        computed from a later state; None: the state cannot be rewound.
      page: Markdown page that describes it, relative to `jaxspec/drafters`.
      peer_method: builder, budget and settings that `jaxspec bench peers` uses for it, such as
        `expand@8/w2`; None: it does not take part.
      assistant: whether it is a complete language model, which transformers can run as an
        assistant.
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
    one_forward: bool = False
    retrieval: bool = False
    weightless: Callable[[TargetConfig], Any] | None = None
    rewind: Callable[[Any, Any], Any] | None = None
    page: str | None = None
    peer_method: str | None = None
    assistant: bool = False

    @property
    def builders(self) -> tuple[str, ...]:
        """Return the names of all builders that work with it."""
        return self.compared + self.further
