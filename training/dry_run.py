"""What a training run would take: parameters, memory, steps and tokens, from shapes alone."""

from __future__ import annotations

import jax
import numpy as np

from training.optimizer import make_optimizer


def tree_bytes(tree) -> int:
    """Bytes of all arrays of a pytree of arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def describe_run(options, params, target, rows: int, tokens: int) -> str:
    """The report of `--dry-run`.

    Args:
      options: `training.train_drafter.DrafterOptions`.
      params: the drafter's float32 variables, or their shapes.
      target: `jaxspec.params.Params` of the target.
      rows, tokens: packed rows, and tokens in them.
    """
    loop, loss, vocab = options.loop, options.loss, target.spec.target.vocab_size
    opt_state = jax.eval_shape(make_optimizer(params, loop.steps, options.optimizer).init, params)
    split = max(loop.fsdp, 1)
    whole, frozen = tree_bytes(params), tree_bytes(target.target)
    epochs = loop.steps * options.batch / rows
    part = -(-options.batch // loop.parts)
    tile = min(loss.tile, part * options.anchors * (options.model.block_size - 1))
    lines = [
        ("drafter", f"{_count(params):,} parameters, {_count(target.target):,} in the frozen target"),
        ("memory of a device", f"{_gigabytes(frozen / (split if loop.shard_frozen else 1))} target"),
        ("", f"{_gigabytes(whole / split)} master weights, {_gigabytes(whole / split)} gradients"),
        (
            "",
            f"{_gigabytes(tree_bytes(opt_state) / split)} optimizer state, {_gigabytes(3 * 4 * tile * vocab)} logits of a tile",
        ),
        ("", f"and activations of {part // max(loop.data * loop.fsdp, 1) or 1} rows of {options.data.length} tokens"),
        ("data", f"{rows:,} rows, {tokens:,} tokens"),
        ("steps", f"{loop.steps:,} of {options.batch} rows: {loop.steps * options.batch * options.data.length:,} tokens"),
        ("", f"{epochs:.2f} epochs, {loop.steps * options.batch * options.anchors:,} blocks"),
    ]
    return "\n".join(f"{name:<20}{value}" for name, value in lines)


def _count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
