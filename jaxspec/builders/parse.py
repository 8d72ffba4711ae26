"""Builders by name: keep the registry and parse strings into builders.

A builder is spelled `<name>[+<score>][/<setting>...]`, as in `expand`, `expand/w3/fanout=top2gap`,
`best_first+hybrid0.3` or `static/paths=[[0],[0,0],[1]]`. A setting is a letter and a number (`/w3`,
see `protocol.LETTERS`) or `/<parameter>=<value>`, where the value is JSON, the name of a .json
file, or plain text. `str(builder)` returns this spelling.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxspec.builders.protocol import LETTERS, Builder
from jaxspec.builders.scores import SCORES
from jaxspec.builders.trees.chain import CHAIN_SCORES
from jaxspec.core.runtime.near_miss import choose_one

_CONSTRUCTORS: dict[str, Callable[..., Builder]] = {}
# What is often written instead, by papers above all; the error names ours.
_MEANT = {"ddtree": "best_first", "tree": "expand", "rank": "rank_guided"}
_SETTING = r"[a-z]\d+(?=/|$)|\w+="


def register(name: str, constructor: Callable[..., Builder]) -> None:
    """Make a builder known by name to `decode(builder=name)`, the command line and `bench`.

    Args:
      name: letters, digits and underscores; the same as `Builder.name`.
      constructor: a subclass of `Builder` or a function that returns a builder; its parameters are
        the settings of the spelling.

    Raises:
      ValueError: the name has another form or is taken.
    """
    if not re.fullmatch(r"[a-z]\w*", name, re.ASCII):
        raise ValueError(
            f"builder name {name!r}: write it in small letters, digits and underscores"
        )
    if name in _CONSTRUCTORS:
        raise ValueError(f"builder name {name!r} is taken: choose another, or unregister it")
    _CONSTRUCTORS[name] = constructor


def unregister(name: str) -> None:
    """Forget a builder.

    Raises:
      ValueError: no builder has this name.
    """
    if name not in _CONSTRUCTORS:
        raise ValueError(f"no builder is called {name!r}: {choose_one(name, _CONSTRUCTORS)}")
    del _CONSTRUCTORS[name]


def list_names() -> list[str]:
    """List the registered builders in order of registration."""
    return list(_CONSTRUCTORS)


def parse_builder(text: str) -> Builder:
    """Parse `text` into a builder.

    Raises:
      ValueError: unknown builder or setting, or a value out of range.
    """
    written, *settings = _split(text)
    written, slash, unknown = written.partition("/")
    if slash:
        raise _unknown_setting(unknown, text)
    name, plus, score = written.partition("+")
    if name not in _CONSTRUCTORS:
        meant = _MEANT.get(name, name)
        raise ValueError(f"unknown builder {name!r}: {choose_one(meant, _CONSTRUCTORS)}")
    constructor = _CONSTRUCTORS[name]
    options = _read_score(text, score) if plus else {}
    for setting in settings:
        key, value = _read_setting(text, setting)
        if key in options:
            raise ValueError(f"builder {text!r} gives {key} twice: give it once")
        options[key] = value
    known = list(inspect.signature(constructor).parameters)
    wrong = next((key for key in options if key not in known), None)
    if wrong is not None:
        choose = choose_one(wrong, known) if known else "it has none"
        raise ValueError(f"builder {name!r} has no setting {wrong!r}: {choose}")
    return constructor(**options)


def make_builder(builder: str | Builder) -> Builder:
    """Return `builder`, parsed if it is a string.

    Raises:
      TypeError: `builder` is neither a string nor a `Builder`.
      ValueError: see `parse_builder`.
    """
    if isinstance(builder, str):
        return parse_builder(builder)
    if not isinstance(builder, Builder):
        raise TypeError(
            f"builder is {builder!r}: give a name such as 'chain' or a value of jaxspec.builders"
        )
    return builder


def _split(text: str) -> list[str]:
    """Split into the name with its score, and the settings; slashes inside values do not count."""
    return re.split(rf"/(?={_SETTING})", text)


def _read_score(text: str, score: str) -> dict[str, Any]:
    names = "|".join(dict.fromkeys(SCORES + CHAIN_SCORES))
    form = re.fullmatch(rf"({names})(?:(?<=hybrid)(\d+(?:\.\d+)?))?", score, re.ASCII)
    if form is None:
        raise ValueError(
            f"unknown score {score!r} in {text!r}: write +logprob, +entropy, +hybrid0.3, or "
            "+confidence for a chain"
        )
    return {"score": form[1]} | ({"entropy_weight": float(form[2])} if form[2] else {})


def _read_setting(text: str, setting: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if equals:
        return key, _read_value(key, value)
    letter, number = setting[0], setting[1:]
    if letter not in LETTERS:
        raise _unknown_setting(setting, text)
    return LETTERS[letter], int(number)


def _unknown_setting(setting: str, text: str) -> ValueError:
    known = ", ".join(f"/{letter}3 for {name}=3" for letter, name in LETTERS.items())
    return ValueError(f"unknown setting /{setting} in {text!r}: write {known}, or /name=value")


def _read_value(key: str, value: str) -> Any:
    written = Path(value).read_text(encoding="utf-8") if value.endswith(".json") else value
    try:
        return json.loads(written)
    except json.JSONDecodeError as error:
        if written is not value or value[:1] in ("[", "{"):
            raise ValueError(f"{key} is not JSON ({error}): correct {value!r}") from None
        return value
