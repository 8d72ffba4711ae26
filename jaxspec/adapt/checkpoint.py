"""Checkpoints of a session, by Orbax: what it published, and what its decider knows.

A version is written completely before it decodes, so a process that dies at any moment loses no
published version. Text is never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxspec.io.files.atomic import save_step


class VersionFiles:
    """The newest published versions of a session, in a folder.

    Args:
      folder: it is made if it does not exist.
      keep: versions to keep.

    Raises:
      NotADirectoryError: there is a file of this name.
    """

    def __init__(self, folder: str | Path, keep: int = 2):
        import orbax.checkpoint as ocp

        if Path(folder).is_file():
            raise NotADirectoryError(f"{folder} is a file: give a folder for versions")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self.manager = ocp.CheckpointManager(Path(folder).resolve(), options=options)

    def __str__(self) -> str:
        return str(self.manager.directory)

    def save(self, arrays: Any, record: dict[str, Any]) -> None:
        """Write a pytree of arrays and a JSON-able record, completely or not at all.

        Raises:
          OSError: it cannot be written, for example to a full disk.
        """
        import orbax.checkpoint as ocp

        known = json.loads(json.dumps(record))
        args = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(known)
        )
        # A query may write twice, so numbers of queries would not do for steps.
        latest = self.manager.latest_step()
        step = 0 if latest is None else latest + 1
        save_step(self.manager, step, args)

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Read the newest checkpoint; None if there is none.

        Raises:
          ValueError: it belongs to a drafter of other sizes.
        """
        import orbax.checkpoint as ocp

        step = self.manager.latest_step()
        if step is None:
            return None
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like
        )
        args = ocp.args.Composite(
            arrays=ocp.args.StandardRestore(abstract), record=ocp.args.JsonRestore()
        )
        try:
            found = self.manager.restore(step, args=args)
        except Exception as error:  # Orbax raises many types
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"{self.manager.directory} holds no state of this drafter ({reason}): "
                "give another folder"
            ) from error
        return found["arrays"], found["record"]

    def close(self) -> None:
        """Release the files."""
        self.manager.close()


def check_record(
    record: Mapping[str, Any], identity: Mapping[str, str], state: Mapping[str, Any], where: object
) -> None:
    """Refuse the record of another session.

    Args:
      identity: of this session's target and drafter, see `jaxspec.adapt.publish.identify_weights`.
      state: of its decider. where: what the message calls the folder.

    Raises:
      ValueError: the versions were made for another target or drafter, or with another decider.
    """
    other = [f"another {name}" for name, own in identity.items() if record["made for"][name] != own]
    if set(record["decider"]) != set(state):
        other.append("another decider")
    if other:
        raise ValueError(
            f"the versions in {where} are of {other[0]}: "
            "give another folder, or what they were made with"
        )
