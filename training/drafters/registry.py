"""The registry of drafters that can be trained."""

from __future__ import annotations

from typing import Any

from jaxspec.core.runtime.near_miss import choose_one

from .dflash import DFLASH
from .draft_model import DRAFT_MODEL
from .dspark import DSPARK
from .eagle3 import EAGLE3
from .falcon import FALCON
from .griffin import GRIFFIN
from .jetspec import JETSPEC
from .medusa import MEDUSA
from .parallelspec import PARALLELSPEC
from .presets import DrafterPreset
from .record import TrainingRecord
from .specblock import SPECBLOCK
from .treeflash import TREEFLASH

_RECORDS: dict[str, TrainingRecord] = {}


def register(record: TrainingRecord) -> None:
    """Let `train_drafter` and `jaxspec train` train a drafter.

    Its inference record must be registered too, see `jaxspec.drafters.register`.

    Raises:
      ValueError: its name, the group of its options or the name of a preset is taken.
    """
    if record.name in _RECORDS:
        raise ValueError(f"a drafter to train is called {record.name!r} already: choose another")
    if record.option_group in make_options():
        raise ValueError(
            f"a group of options is called {record.option_group!r} already: choose another"
        )
    if taken := sorted(set(record.presets) & set(list_presets())):
        raise ValueError(f"a preset is called {taken[0]!r} already: choose another name")
    _RECORDS[record.name] = record


def unregister(name: str) -> None:
    """Undo `register`; ValueError if no drafter to train is called `name`."""
    named(name)
    del _RECORDS[name]


def records() -> tuple[TrainingRecord, ...]:
    """Return all records in the order of registration."""
    return tuple(_RECORDS.values())


def named(kind: str) -> TrainingRecord:
    """Return the record called `kind`; the ValueError of an unknown kind lists all kinds."""
    if kind not in _RECORDS:
        raise ValueError(f"unknown kind {kind!r}: {choose_one(kind, _RECORDS)}")
    return _RECORDS[kind]


def make_options() -> dict[str, Any]:
    """Make the drafters' own options with their defaults, by group."""
    return {
        record.option_group: record.options()
        for record in _RECORDS.values()
        if record.options is not None
    }


def list_presets() -> dict[str, DrafterPreset]:
    """List the recipes of all drafters by name."""
    return {name: one for record in _RECORDS.values() for name, one in record.presets.items()}


for _record in (
    DFLASH,
    JETSPEC,
    DSPARK,
    TREEFLASH,
    EAGLE3,
    GRIFFIN,
    SPECBLOCK,
    MEDUSA,
    PARALLELSPEC,
    FALCON,
    DRAFT_MODEL,
):
    register(_record)
