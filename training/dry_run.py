"""Estimate a training run from shapes alone: parameters, memory, steps and tokens."""

from __future__ import annotations

import jax
import numpy as np

from jaxspec.core.params import Params, Spec
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.transformer import Transformer
from jaxspec.zoo.checkpoint import default_dtype
from jaxspec.zoo.places import resolve_model

from .data.packing import PackedRows
from .data.pipeline import load_packed_rows
from .drafters import named
from .drafters.first_weights import make_first_weights, split_frozen
from .recipe import with_steps
from .run.optimizer import make_optimizer


def count_bytes(tree) -> int:
    """Sum up the bytes of a pytree of arrays or shapes."""
    return sum(
        int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree)
    )


def describe_run(options) -> str:
    """Make the report of `--dry-run`. It reads the data and the target's config, but no weights.

    Args:
      options: `training.train_drafter.DrafterOptions`.

    Raises:
      ValueError, OSError: options or data do not fit, as in the run itself.
    """
    directory = resolve_model(options.target, weights=False)
    target_spec = target_config(read_entries(directory / "config.json"))
    record = named(options.model.kind)
    config = record.config(options.model, target_spec, str(directory))
    rows = load_packed_rows(
        options.data, str(directory) if (directory / "tokenizer.json").is_file() else None
    )
    options = with_steps(options, rows)
    token = jax.ShapeDtypeStruct((1, 2), np.int32)
    target = jax.eval_shape(Transformer(target_spec).init, jax.random.key(0), token, token)
    target = jax.tree.map(lambda x: x.update(dtype=options.target_dtype or default_dtype()), target)
    bundle = Params(target, {}, Spec(target_spec))
    ids = None if config.draft_vocab_size is None else np.zeros(config.draft_vocab_size, np.int32)
    params = jax.eval_shape(
        lambda bundle: make_first_weights(record, options.model, config, 0, bundle, ids), bundle
    )
    params, kept = split_frozen(params, record.frozen(record.take_options(options.method)))
    target = target | kept
    optimizer = make_optimizer(params, options.loop.steps, options.optimizer, record.outputs)
    opt_state = jax.eval_shape(optimizer.init, params)
    lines = _lines(options, params, opt_state, target, rows, target_spec.vocab_size, config.depth)
    return "\n".join(f"{name:<20}{value}" for name, value in lines)


def _lines(
    options, params, opt_state, target, rows: PackedRows, vocab: int, depth: int
) -> list[tuple[str, str]]:
    loop, loss = options.loop, options.loss
    split = max(loop.fsdp, 1)
    whole, frozen = count_bytes(params), count_bytes(target)
    epochs = loop.steps * options.batch / len(rows.tokens)
    part = -(-options.batch // loop.parts)
    tile = min(loss.tile, part * options.anchors * depth)
    # The target's logits, the drafter's and their gradient; of a reduced draft vocabulary the
    # target's are cut out too.
    drafted = options.model.draft_vocab
    columns = 3 * vocab if drafted is None else vocab + 3 * drafted
    return [
        ("drafter", f"{_count(params):,} parameters, {_count(target):,} in the frozen target"),
        (
            "memory of a device",
            f"{_gigabytes(frozen / (split if loop.shard_frozen else 1))} target",
        ),
        ("", f"{_gigabytes(whole / split)} master weights, {_gigabytes(whole / split)} gradients"),
        (
            "",
            f"{_gigabytes(count_bytes(opt_state) / split)} optimizer state, "
            f"{_gigabytes(4 * tile * columns)} logits of a tile",
        ),
        (
            "",
            f"and activations of {part // max(loop.data * loop.fsdp, 1) or 1} rows of "
            f"{options.data.length} tokens",
        ),
        ("data", f"{len(rows.tokens):,} rows, {int((rows.segments > 0).sum()):,} tokens"),
        (
            "steps",
            f"{loop.steps:,} of {options.batch} rows: "
            f"{loop.steps * options.batch * options.data.length:,} tokens",
        ),
        ("", f"{epochs:.2f} epochs, {loop.steps * options.batch * options.anchors:,} blocks"),
    ]


def _count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
