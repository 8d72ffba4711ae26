"""Names of policies on the command line, and their tags in saved files.

Each policy module registers its own names and tags. Use `jaxspec.policies.register` and
`jaxspec.policies.tagged` for policies of your own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jaxspec.policies.protocol import Policy

Class = TypeVar("Class", bound=type)

# The name of the automatic policy, which `jaxspec.decode` makes itself: see
# `jaxspec.tuner.automatic`.
AUTOMATIC = "auto"


class NamedPolicy(NamedTuple):
    """The constructor behind a name.

    Attributes:
      make: makes the policy.
      by_costs: call `make` with round costs, a `RoundCosts` of the decode's rounds.
      argument: name of the text after the colon, in capitals for help texts; `make` is called with
        that text. Empty if the name takes no argument.
    """

    make: Callable[..., Policy]
    by_costs: bool = False
    argument: str = ""


_NAMED: dict[str, NamedPolicy] = {}
_TAGS: dict[str, type] = {}


def register(
    name: str, make: Callable[..., Policy], *, by_costs: bool = False, argument: str = ""
) -> None:
    """Register a policy by name.

    `--policy`, method names of `jaxspec bench` and `jaxspec.policies.make_named` accept the name.

    Args:
      name: letters, digits, `-`, `_` and `+`, for example `bastion-paper+ema`.
      make, by_costs, argument: see `NamedPolicy`.

    Raises:
      ValueError: the name has another form, or another constructor has it.
    """
    if not re.fullmatch(r"[A-Za-z][\w+-]*", name, re.ASCII):
        raise ValueError(f"{name!r} cannot name a policy: use letters, digits, -, _ and +")
    found = NamedPolicy(make, by_costs, argument)
    known = _NAMED.get(name)
    if known is not None and not _same_origin(known.make, make):
        raise ValueError(f"the policy name {name!r} is taken: register another one")
    _NAMED[name] = found


def policy_forms() -> tuple[str, ...]:
    """List all names for help texts, for example `best` and `static:STEPSxROWS`."""
    return tuple(
        f"{name}:{found.argument}" if found.argument else name for name, found in _NAMED.items()
    )


def find_named(text: str) -> tuple[NamedPolicy, str] | None:
    """Find the policy of `name` or `name:argument`.

    Returns:
      (the policy's record, the argument), or None if no policy has this name.
    """
    name, colon, argument = text.partition(":")
    found = _NAMED.get(name)
    if found is None or bool(colon) != bool(found.argument):
        return None
    return found, argument


def tagged(tag: str) -> Callable[[Class], Class]:
    """Decorate a dataclass or NamedTuple of a policy with its name in saved files.

    Config, controls and state each need a tag if they are classes. Keep the tag when you move or
    rename the class, so that earlier files still load.

    Raises:
      ValueError: another class has the tag, or the class is neither of the two.
    """

    def decorate(found: Class) -> Class:
        if not dataclasses.is_dataclass(found) and not hasattr(found, "_fields"):
            raise ValueError(f"{found.__name__} cannot have a tag: make it a dataclass")
        known = _TAGS.get(tag)
        if known is not None and not _same_origin(known, found):
            raise ValueError(f"the tag {tag!r} is taken by {known.__name__}: use another one")
        _TAGS[tag] = found
        return found

    return decorate


def tag_of(found: type) -> str:
    """Return the tag of a policy's class.

    Raises:
      ValueError: the class has no tag.
    """
    for tag, other in _TAGS.items():
        if other is found:
            return tag
    raise ValueError(
        f"{found.__name__} has no tag to be saved by: decorate it with "
        f'@jaxspec.policies.tagged("a-tag-of-its-own")'
    )


def tagged_class(tag: Any) -> type:
    """Return the class of a tag from a file.

    Raises:
      ValueError: no class has the tag.
    """
    if tag not in _TAGS:
        raise ValueError(
            f"the saved policy has a part tagged {tag!r}, which is not registered: import the "
            "module that defines it before loading"
        )
    return _TAGS[tag]


def _same_origin(known: Any, new: Any) -> bool:
    """Tell whether `new` is `known` defined again, for example by running a notebook cell twice."""
    origins = [
        (getattr(one, "__module__", None), getattr(one, "__qualname__", None))
        for one in (known, new)
    ]
    return known is new or (origins[0] == origins[1] and None not in origins[0])
