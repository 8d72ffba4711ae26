"""What policies are called: names on the command line, and tags in saved files.

Each policy module registers its own names and tags; `jaxspec.policies.register` and
`jaxspec.policies.tagged` do the same for policies of your own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jaxspec.policies.protocol import Policy

Class = TypeVar("Class", bound=type)


class NamedPolicy(NamedTuple):
    """A policy that a name stands for.

    Attributes:
      make: gives the policy.
      by_costs: call `make` with round costs, a `RoundCosts` of the decode's rounds.
      argument: what follows the name and a colon, in capitals for help texts; `make` is called with
        that text. Empty: the name stands alone.
    """

    make: Callable[..., Policy]
    by_costs: bool = False
    argument: str = ""


_NAMED: dict[str, NamedPolicy] = {}
_TAGS: dict[str, type] = {}


def register(
    name: str, make: Callable[..., Policy], *, by_costs: bool = False, argument: str = ""
) -> None:
    """Let `name` stand for a policy in `--policy`, in method names of `jaxspec bench` and in
    `jaxspec.policies.make_named`.

    Args:
      name: letters, digits, `-` and `_`, such as `bastion-paper`.
      make, by_costs, argument: as of `NamedPolicy`.

    Raises:
      ValueError: a name of another form, or one that another constructor has.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
        raise ValueError(f"{name!r} cannot name a policy: use letters, digits, - and _")
    found = NamedPolicy(make, by_costs, argument)
    known = _NAMED.get(name)
    if known is not None and not _same_origin(known.make, make):
        raise ValueError(f"the policy name {name!r} is taken: register another one")
    _NAMED[name] = found


def policy_names() -> tuple[str, ...]:
    """All names that stand alone, in the order in which they were registered."""
    return tuple(name for name, found in _NAMED.items() if not found.argument)


def policy_forms() -> tuple[str, ...]:
    """All names for help texts, such as `best` and `static:STEPSxROWS`."""
    return tuple(
        f"{name}:{found.argument}" if found.argument else name for name, found in _NAMED.items()
    )


def find_named(text: str) -> tuple[NamedPolicy, str] | None:
    """The policy that `name` or `name:argument` stands for, and the argument; None if no policy
    has this name.
    """
    name, colon, argument = text.partition(":")
    found = _NAMED.get(name)
    if found is None or bool(colon) != bool(found.argument):
        return None
    return found, argument


def tagged(tag: str) -> Callable[[Class], Class]:
    """Decorate a dataclass or NamedTuple that a policy is made of with its name in saved files.

    Config, controls and state need a tag each if they are classes. Keep a tag when the class moves
    or is renamed: files that were saved before still load.

    Raises:
      ValueError: another class has the tag, or the class is neither.
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
    """The tag of a class that a policy is made of.

    Raises:
      ValueError: it has none.
    """
    for tag, other in _TAGS.items():
        if other is found:
            return tag
    raise ValueError(
        f"{found.__name__} has no tag to be saved by: decorate it with "
        f'@jaxspec.policies.tagged("a-tag-of-its-own")'
    )


def tagged_class(tag: Any) -> type:
    """The class of a tag from a file.

    Raises:
      ValueError: no class has it.
    """
    if tag not in _TAGS:
        raise ValueError(
            f"the saved policy has a part tagged {tag!r}, which is not registered: import the "
            "module that defines it before loading"
        )
    return _TAGS[tag]


def _same_origin(known: Any, new: Any) -> bool:
    """Whether `new` is `known` defined once more, as when a notebook's cell runs again."""
    origins = [
        (getattr(one, "__module__", None), getattr(one, "__qualname__", None))
        for one in (known, new)
    ]
    return known is new or (origins[0] == origins[1] and None not in origins[0])
