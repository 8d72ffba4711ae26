"""A parser of command lines that names what was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from jaxspec.core.runtime.near_miss import choose_one, find_near_miss

# Options by other words for them: vLLM calls a kind of drafter a method.
_OTHER_WORDS = {"--method": "--drafter"}


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that tells the nearest option or choice of one that it doesn't have.

    The parsers of its commands are of this class, too.
    """

    def parse_known_args(
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as `argparse` does; only commands with `rest` may have unknown arguments."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and not hasattr(found, "rest"):
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._hint(rest)}")
        return found, rest

    def _hint(self, rest: Sequence[str]) -> str:
        near = (self._find_meant(one.partition("=")[0]) for one in rest if one[:1] == "-")
        return "".join(f": did you mean {name}?" for name in list(filter(None, near))[:1])

    def _find_meant(self, given: str) -> str | None:
        """Find the option that was probably meant. The dashes alone make no two options alike."""
        options = {one[2:]: one for one in self._option_string_actions if one.startswith("--")}
        other = _OTHER_WORDS.get(given)
        if other in options.values():
            return other
        near = find_near_miss(given.lstrip("-"), options)
        return None if near is None else options[near]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The only place where argparse knows both what was given and what may be.
        if action.choices is not None and value not in action.choices:
            message = f"{value!r} is not known: {choose_one(value, map(str, action.choices))}"
            raise argparse.ArgumentError(action, message)
