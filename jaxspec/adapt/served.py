"""The drafter that a session decodes with: its weights, their versions, and the files of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxspec.adapt.actions import check_unshared
from jaxspec.adapt.checkpoint import VersionFiles, check_record
from jaxspec.adapt.publish import copy_weights, identify_weights, publish
from jaxspec.adapt.updates import Trainer
from jaxspec.core.params import Params, check_params
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.drafters.registry import record_of
from jaxspec.targets.sharding.place import refuse


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


class Served:
    """Parameters whose drafter changes from version to version.

    Args:
      params: with a copy of the drafter's weights that publications may overwrite.
      drafter: the drafter.
      trainer: makes new versions.
      keep: versions to keep on the host, besides the first.
      folder: where published versions are kept; None: nowhere.
      identity: of the target and the drafter (None: those of `params`).

    Attributes:
      params: what decodes now.
      version: the version of its drafter.
      published: called with every version's weights once they are in `params`.
    """

    published: Callable[[Any], None] = staticmethod(lambda weights: None)

    def __init__(
        self,
        params: Params,
        drafter: str,
        trainer: Trainer,
        keep: int,
        folder: str | Path | None,
        identity: Mapping[str, str] | None = None,
    ):
        self.params, self.drafter, self.trainer, self.version = params, drafter, trainer, 0
        self.versions = Versions(trainer.train.theta, keep)
        self.files = None if folder is None else VersionFiles(folder)
        self._identity = identity
        if folder is not None and identity is None:
            self._identity = identify_weights(params, drafter)

    @property
    def weights(self) -> Any:
        """The drafter's weights that decode now."""
        return self.params.drafter(self.drafter)["params"]

    def add(self) -> None:
        """Make the trainer's weights the newest version, which `serve` lets decode."""
        self.version = self.versions.add(self.trainer.train.theta)

    def take_back(self, version: int) -> None:
        """Give the trainer a version's weights, or those of the newest kept one before it."""
        self.version, theta = self.versions.find(version)
        self.trainer.restore(theta)

    def choose(self, version: int, theta: Any) -> None:
        """Give the trainer a version's weights, which were found before."""
        self.version = version
        self.trainer.restore(theta)

    def undo(self) -> None:
        """Give the trainer the weights of the current version again."""
        self.trainer.restore(self.versions.find(self.version)[1])

    def serve(self, queries: int, state: Mapping[str, Any]) -> None:
        """Write the current version to the folder, then let it decode.

        Args:
          queries: of the session so far.
          state: of its decider.
        """
        if self.files is not None:
            record = {
                "version": self.version,
                "published": self.versions.published,
                "queries": queries,
                "decider": state,
                "made for": self._identity,
            }
            with self.trainer.turns.released():
                self.files.save(self._arrays(), record)
        self._publish()

    def resume(self, state: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Go on with the newest version of the folder.

        Args:
          state: of a new decider of the session's kind.

        Returns:
          Queries before it and the decider's state then; None if there is no version.

        Raises:
          ValueError: it was made for another target or drafter, or with another decider.
        """
        found = None if self.files is None else self.files.restore(self._arrays())
        if found is None:
            return None
        arrays, record = found
        check_record(record, self._identity, state, self.files)
        self.version = record["version"]
        self.trainer.resume(self.trainer.train._replace(**arrays["train"]), arrays["start"])
        self.versions.resume(self.version, self.trainer.train.theta, record["published"])
        self._publish()
        return record["queries"], record["decider"]

    def serve_again(self) -> None:
        """Let the current version decode, which it does."""
        self._publish()

    def close(self) -> None:
        """Release the files."""
        if self.files is not None:
            self.files.close()

    def _publish(self) -> None:
        weights = publish(self.weights, self.trainer.train.theta)
        self.params = with_weights(self.params, self.drafter, weights)
        self.published(weights)

    def _arrays(self) -> dict[str, Any]:
        return {"train": self.trainer.train._asdict(), "start": self.trainer.start}


def copy_drafter(params: Params, drafter: str) -> Params:
    """Return `params` with a copy of a drafter's weights."""
    return with_weights(params, drafter, copy_weights(params.drafter(drafter)["params"]))


def with_weights(params: Params, drafter: str, weights: Any) -> Params:
    """Return `params` with other weights of a drafter, in the same order of drafters."""
    variables = {**params.drafter(drafter), "params": weights}
    return params.replace(drafters={**params.drafters, drafter: variables})


def check_drafter(params: Params, drafter: str | None) -> str:
    """Check a model, and return the drafter to adapt; None: the default one.

    Raises:
      TypeError, ValueError: this is no model, or several devices share it; or the drafter has no
        weights of its own, or there is none of this name.
    """
    check_params(params)
    refuse(params, "served by a drafter that learns")
    drafter = drafter or params.spec.default_drafter
    trained = [
        name
        for name, variables in params.drafters.items()
        if variables.get("params") and not record_of(params.spec.drafter(name)).retrieval
    ]
    if drafter not in trained:
        choice = choose_one(drafter, trained) if trained else "load a trained drafter"
        raise ValueError(f"{drafter!r} has no weights to adapt: {choice}")
    check_unshared(params.drafter(drafter)["params"], params.target)
    return drafter
