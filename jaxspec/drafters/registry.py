"""The registry of drafters: look a drafter up by name or by config."""

from __future__ import annotations

import functools
from typing import Any

from jaxspec.core.params import WEIGHTLESS
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.dflash import DFLASH
from jaxspec.drafters.dflash2 import DFLASH2
from jaxspec.drafters.draft_model import DRAFT_MODEL
from jaxspec.drafters.dspark import DSPARK
from jaxspec.drafters.eagle3 import EAGLE3
from jaxspec.drafters.falcon import FALCON
from jaxspec.drafters.griffin import GRIFFIN
from jaxspec.drafters.jetspec import JETSPEC
from jaxspec.drafters.medusa import MEDUSA
from jaxspec.drafters.parallelspec import PARALLELSPEC
from jaxspec.drafters.prompt_lookup import PROMPT_LOOKUP
from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.specblock import SPECBLOCK
from jaxspec.drafters.suffix import SUFFIX
from jaxspec.drafters.treeflash import TREEFLASH

_RECORDS: dict[str, DrafterRecord] = {}


def register(record: DrafterRecord) -> None:
    """Make a drafter known to the whole library.

    Raises:
      ValueError: its name is taken, or another record owns all configs of its class.
    """
    if record.name in _RECORDS or record.name == "ar":
        raise ValueError(f"a drafter is called {record.name!r} already: choose another name")
    for other in _RECORDS.values():
        if other.config is record.config and None in (other.owns, record.owns):
            raise ValueError(
                f"{record.config.__name__} is the config of drafter {other.name!r} already: make a "
                "config class of your own, or give both records `owns`"
            )
    _RECORDS[record.name] = record
    if record.weightless is not None:
        WEIGHTLESS[record.name] = record.weightless
    make_drafter.cache_clear()


def unregister(name: str) -> None:
    """Undo `register`; ValueError if no drafter is called `name`."""
    named(name)
    del _RECORDS[name]
    WEIGHTLESS.pop(name, None)
    make_drafter.cache_clear()


def records() -> tuple[DrafterRecord, ...]:
    """Return all records in the order of registration."""
    return tuple(_RECORDS.values())


def named(name: str) -> DrafterRecord:
    """Return the record called `name`; the ValueError of an unknown name lists all names."""
    if name not in _RECORDS:
        raise ValueError(f"unknown drafter {name!r}: {choose_one(name, _RECORDS)}")
    return _RECORDS[name]


def record_of(config: Any) -> DrafterRecord:
    """Return the record that owns `config`; ValueError if there is none or more than one."""
    found = [
        record
        for record in _RECORDS.values()
        if record.config is type(config) and (record.owns is None or record.owns(config))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(
            f"no drafter has a config of type {type(config).__name__}: give its record to "
            "jaxspec.drafters.register"
        )
    names = " and ".join(repr(record.name) for record in found)
    raise ValueError(f"drafters {names} both own this config: let `owns` of one of them refuse it")


def default_builder(config: Any) -> str:
    """Return the builder of calls that name none: that of the drafter's files, or of its record."""
    return getattr(config, "builder", "") or record_of(config).default_builder


@functools.lru_cache(maxsize=256)
def make_drafter(config: Any) -> Drafter:
    """Return the bundle of functions of `config`; equal configs get the identical bundle."""
    return record_of(config).make(config)


# Formats are tried in reverse order, see `files.read_config`: some EAGLE-3 files name the
# architecture of a plain language model, and DFlash shares the speculators schema with others.
for _record in (
    JETSPEC,
    DFLASH,
    DRAFT_MODEL,
    FALCON,
    PARALLELSPEC,
    MEDUSA,
    SPECBLOCK,
    EAGLE3,
    GRIFFIN,
    DSPARK,
    DFLASH2,
    TREEFLASH,
    PROMPT_LOOKUP,
    SUFFIX,
):
    register(_record)
