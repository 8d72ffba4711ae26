"""Which builder goes with which drafter, by the drafters' records."""

from __future__ import annotations

from typing import Any

from jaxspec.drafters.registry import record_of, records


def suits(config: Any) -> tuple[str, ...]:
    """Names of the builders that go with the drafter of `config`."""
    return record_of(config).builders


def check_suits(builder: str, method: str, config: Any) -> None:
    """Raise ValueError, listing those that do, where `builder` does not go with the drafter of
    `config`, called `method`.
    """
    suitable = suits(config)
    if builder in suitable:
        return
    known = any(builder in record.builders for record in records())
    what = (
        f"builder {builder!r} does not go with {method!r}"
        if known
        else f"unknown builder {builder!r}"
    )
    raise ValueError(f"{what}: choose one of {', '.join(suitable)}")
