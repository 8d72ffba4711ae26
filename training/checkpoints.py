"""Orbax checkpoints of a training run: parameters, optimizer state and step, tied to the recipe
that made them.

A checkpoint is written under a temporary name and renamed when every process has written its part,
so a process that dies at any moment leaves the newest complete one in place.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp


class TrainingError(ValueError):
    """A run cannot go on; the message says why, what is left of it and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be read or written, or belongs to another recipe."""


class Checkpoints:
    """The newest checkpoints of one run. Every process of the run makes one of these and calls it
    alike.

    Args:
      folder: where they are kept, on a file system that all processes see.
      recipe: JSON-able description of the run, stored beside each checkpoint and compared on
        restoring.
      changed: names in `recipe` that may differ from the checkpoint's.
      keep: checkpoints kept.
    """

    def __init__(self, folder: Path, recipe: dict, changed: tuple[str, ...] = (), keep: int = 2):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self.folder, self.recipe = folder.resolve(), json.loads(json.dumps(recipe, default=str))
        self.changed = changed
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state) -> None:
        """Write `state` (a pytree of arrays) after `step` steps; complete or absent, never half.

        Raises:
          CheckpointError: it cannot be written, as on a full disk; what was written of it is
            removed.
        """
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), recipe=ocp.args.JsonSave(self.recipe)
        )
        before = self.last_good()
        try:
            self.manager.save(step, args=args, force=True)
            self.manager.wait_until_finished()
        except Exception as error:  # a full disk is an OSError from Orbax, and a ValueError or worse from TensorStore
            for left in self.folder.glob(f"{step}.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {step} cannot be written to {self.folder} ({_line(error)}): make room and run the same command "
                f"again; last good checkpoint: {before}"
            ) from error

    def last_good(self) -> str:
        """Path of the newest complete checkpoint, or `none`."""
        step = self.manager.latest_step()
        return "none" if step is None else str(self.folder / str(step))

    def restore(self, abstract):
        """(step, state) of the newest checkpoint; None when there is none.

        Args:
          abstract: the state's `jax.ShapeDtypeStruct`s with the shardings to restore to, which need
            not be those it was saved from.

        Raises:
          CheckpointError: it was made by another recipe (the first difference is named) or is
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
                    f"{self.folder} was made with {name}={found.get(name)!r}, not {self.recipe.get(name)!r}: "
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
        """(recipe, state) of the newest checkpoint in `folder`, as numpy arrays, whatever devices
        wrote it.
        """
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
        self.manager.close()


def _line(error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (
        text if len(text) < 240 else f"{text[:100]} ... {text[-130:]}"
    )  # the cause, as TensorStore tells it, is at the end
