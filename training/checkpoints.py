"""Orbax checkpoints of a training run: parameters, optimizer state and step, tied to the recipe that made them."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import orbax.checkpoint as ocp


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or belongs to another recipe."""


class Checkpoints:
    """The newest checkpoints of one run.

    Args:
      folder: where they are kept.
      recipe: JSON-able description of the run, stored beside each checkpoint and compared on restoring.
      changed: names in `recipe` that may differ from the checkpoint's.
      keep: checkpoints kept.
    """

    def __init__(self, folder: Path, recipe: dict, changed: tuple[str, ...] = (), keep: int = 2):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self.folder, self.recipe = folder.resolve(), json.loads(json.dumps(recipe, default=str))
        self.changed = changed
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state) -> None:
        """Write `state` (a pytree of arrays) after `step` steps; complete or absent, never half."""
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), recipe=ocp.args.JsonSave(self.recipe))
        self.manager.save(step, args=args, force=True)
        self.manager.wait_until_finished()

    def restore(self, state):
        """(step, state) of the newest checkpoint; (0, `state`) when there is none.

        Raises:
          CheckpointError: it was made by another recipe (the first difference is named) or is damaged.
        """
        step = self.manager.latest_step()
        if step is None:
            return 0, state
        self._check(step)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        try:
            restored = self.manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        except Exception as error:  # Orbax raises many types for missing or short files; all mean the same here.
            raise CheckpointError(
                f"checkpoint {self.folder / str(step)} cannot be read: delete it to continue from an older one ({error})"
            ) from error
        return step, restored["state"]

    def _check(self, step: int) -> None:
        try:
            found = self.manager.restore(step, args=ocp.args.Composite(recipe=ocp.args.JsonRestore()))["recipe"]
        except Exception as error:
            raise CheckpointError(
                f"checkpoint {self.folder / str(step)} is truncated: delete it to continue from an older one ({error})"
            ) from error
        for name in sorted(set(found) | set(self.recipe)):
            if name not in self.changed and found.get(name) != self.recipe.get(name):
                raise CheckpointError(
                    f"{self.folder} was made with {name}={found.get(name)!r}, not {self.recipe.get(name)!r}: "
                    f"use the same options, another --loop.run, or --loop.changed {name}"
                )

    @staticmethod
    def read(folder: Path):
        """(recipe, state) of the newest checkpoint in `folder`, as numpy arrays."""
        if not folder.is_dir():
            raise CheckpointError(f"no checkpoints in {folder}: train first")
        with ocp.CheckpointManager(folder.resolve()) as manager:
            step = manager.latest_step()
            if step is None:
                raise CheckpointError(f"no complete checkpoint in {folder}: train first")
            args = ocp.args.Composite(state=ocp.args.StandardRestore(), recipe=ocp.args.JsonRestore())
            found = manager.restore(step, args=args)
        return found["recipe"], found["state"]

    def close(self) -> None:
        self.manager.close()
