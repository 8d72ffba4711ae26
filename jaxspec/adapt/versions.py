"""The versions of a drafter that a session published, kept on the host for a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax


class Versions:
    """Published master weights by number; version 0 is the drafter before deployment.

    Args:
      first: the weights of version 0.
      keep: versions that are kept besides the first, the newest ones.

    Attributes:
      published: number of the newest version. Numbers are never used twice.
    """

    def __init__(self, first: Any, keep: int):
        self.keep, self.published = keep, 0
        self._known = {0: jax.device_get(first)}

    def add(self, theta: Any) -> int:
        """Keep weights as a new version; return its number."""
        self.published += 1
        self._known[self.published] = jax.device_get(theta)
        for old in sorted(self._known)[1 : -self.keep]:
            del self._known[old]
        return self.published

    def find(self, version: int) -> tuple[int, Any]:
        """Return the number and the weights of a version, or of the newest kept one before it."""
        number = max(known for known in self._known if known <= version)
        return number, self._known[number]

    def load(self, numbers: Iterable[int], current: int, first: Any) -> dict[int, Any]:
        """Return the weights of versions other than `current`, on the device.

        Args:
          first: those of version 0, which are there already.
        """
        found = dict(self.find(number) for number in numbers)
        return {
            number: jax.device_put(theta) if number else first
            for number, theta in found.items()
            if number != current
        }

    def resume(self, version: int, theta: Any, published: int) -> None:
        """Go on after a restart: of the versions before it, only the first and `version` are known."""
        self.published = published
        self._known[version] = jax.device_get(theta)
