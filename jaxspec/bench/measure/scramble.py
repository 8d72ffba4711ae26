"""Make drafters that cost as much as the given ones and predict nothing."""

from __future__ import annotations

import dataclasses

import jax

from jaxspec.core.params import Params


def scramble_drafters(params: Params, seed: int) -> Params:
    """Scramble all loaded drafters that have weights.

    Raises:
      ValueError: none has.
    """
    names = [name for name, weights in params.drafters.items() if jax.tree.leaves(weights)]
    if not names:
        raise ValueError("no drafter with weights to scramble is loaded: give --drafter NAME")
    for name in names:
        params = scramble_drafter(params, name, seed)
    return params


def scramble_drafter(params: Params, drafter: str, seed: int) -> Params:
    """Shuffle the entries of every weight array of a drafter, which keeps its cost but not its
    predictions.

    Raises:
      ValueError: the drafter is unknown or has no weights.
    """
    params.spec.drafter(drafter)
    leaves, structure = jax.tree.flatten(params.drafter(drafter))
    if not leaves:
        raise ValueError(f"{drafter!r} has no weights to scramble: choose a trained drafter")
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    mixed = [
        jax.random.permutation(key, leaf.reshape(-1)).reshape(leaf.shape)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return dataclasses.replace(
        params, drafters={**params.drafters, drafter: jax.tree.unflatten(structure, mixed)}
    )
