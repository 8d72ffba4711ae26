"""Orbax checkpoints of a training run: parameters, optimizer state and step, tied to a recipe.

A checkpoint is written under a temporary name, and renamed when every process has written its part.
A process that dies at any moment leaves the newest complete checkpoint in place.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxspec.io.files.atomic import save_step


class TrainingError(ValueError):
    """A run cannot continue. The message says why, what is left of it and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be read or written, or belongs to another recipe."""


class Checkpoints:
    """The newest checkpoints of one run. Every process of a run makes one and calls it in step.

    Args:
      folder: where checkpoints are kept, on a file system that all processes see.
      recipe: JSON-able description of the run, stored with each checkpoint and compared when it is
        restored.
      changed: names in `recipe` that may differ from the checkpoint's.
      keep: number of checkpoints to keep.
    """

    def __init__(self, folder: Path, recipe: dict, changed: tuple[str, ...] = (), keep: int = 2):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self.folder, self.recipe = folder.resolve(), json.loads(json.dumps(recipe, default=str))
        self.changed = changed
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state) -> None:
        """Write `state` (a pytree of arrays) after `step` steps, completely or not at all.

        Raises:
          CheckpointError: it cannot be written, for example to a full disk. Partial files are
          removed.
        """
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), recipe=ocp.args.JsonSave(self.recipe)
        )
        before = self.last_good()
        try:
            save_step(self.manager, step, args)
        except Exception as error:  # a full disk is an OSError from Orbax, and a ValueError or worse from TensorStore
            raise CheckpointError(
                f"checkpoint {step} cannot be written to {self.folder} ({_line(error)}): "
                "free disk space and run the same command again; "
                f"last good checkpoint: {before}"
            ) from error

    def last_good(self) -> str:
        """Return the path of the newest complete checkpoint, or `none`."""
        step = self.manager.latest_step()
        return "none" if step is None else str(self.folder / str(step))

    def restore(self, abstract):
        """Read (step, state) of the newest checkpoint; None if there is none.

        Args:
          abstract: `jax.ShapeDtypeStruct`s of the state with the shardings to restore to, which may
            differ from those that it was saved from.

        Raises:
          CheckpointError: another recipe made it (the message names the first difference), or it is
            damaged.
        """
        step = self.manager.latest_step()
        if step is None:
            return None
        self._check(step)
        try:
            restored = self.manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
            )
        except (
            Exception
        ) as error:  # Orbax raises many types for missing or short files; all mean the same here.
            raise self._damaged(step, "cannot be read", error) from error
        return step, restored["state"]

    def _check(self, step: int) -> None:
        try:
            found = self.manager.restore(
                step, args=ocp.args.Composite(recipe=ocp.args.JsonRestore())
            )["recipe"]
        except Exception as error:
            raise self._damaged(step, "is truncated", error) from error
        for name in sorted(set(found) | set(self.recipe)):
            if name not in self.changed and found.get(name) != self.recipe.get(name):
                raise CheckpointError(
                    f"{self.folder} was made with {name}={found.get(name)!r}, "
                    f"not {self.recipe.get(name)!r}: "
                    f"use the same options, another --loop.run, or --loop.changed {name}"
                )

    def _damaged(self, step: int, what: str, error: Exception) -> CheckpointError:
        older = [number for number in self.manager.all_steps() if number < step]
        onward = f"continue from {self.folder / str(max(older))}" if older else "start again"
        return CheckpointError(
            f"checkpoint {self.folder / str(step)} {what}: delete it to {onward} ({_line(error)})"
        )

    @staticmethod
    def read(folder: Path):
        """Read (recipe, state) of the newest checkpoint in `folder`, as numpy arrays."""
        if not folder.is_dir():
            raise CheckpointError(f"no checkpoints in {folder}: train first")
        handlers = {"state": ocp.StandardCheckpointHandler(), "recipe": ocp.JsonCheckpointHandler()}
        with ocp.CheckpointManager(folder.resolve(), item_handlers=handlers) as manager:
            step = manager.latest_step()
            if step is None:
                raise CheckpointError(f"no complete checkpoint in {folder}: train first")
            # Zero-stride arrays: they ask Orbax for numpy arrays of their shape, and take no memory
            # themselves.
            shapes = manager.item_metadata(step)["state"]
            like = jax.tree.map(
                lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes
            )
            args = ocp.args.Composite(
                state=ocp.args.StandardRestore(like), recipe=ocp.args.JsonRestore()
            )
            found = manager.restore(step, args=args)
        return found["recipe"], found["state"]

    def close(self) -> None:
        """Release the files."""
        self.manager.close()


def _line(error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (
        text if len(text) < 240 else f"{text[:100]} ... {text[-130:]}"
    )  # the cause, as TensorStore tells it, is at the end
