"""Choose how the weights of a call lie: copies of them where rounds of few rows are faster so."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params
from jaxspec.targets.layouts import registry
from jaxspec.targets.layouts.copies import COPIES
from jaxspec.targets.layouts.layout import Layout
from jaxspec.tuner.layout_speed import FEW, Sizes, choose_sizes, find_fastest
from jaxspec.tuner.store import Store
from pallas_kernels.versions import vectorizes_sums

# Largest share of the machine's memory that a copy of a model may take. Calls of one sequence and
# of several may read different ones.
MOST_MEMORY = 0.25
# Environment variable: 0 makes no copies, a number of outputs side by side makes them without
# measuring.
SWITCH = "JAXSPEC_PANELS"


class WeightLayouts:
    """The copies that a process made, and the layouts that it measured.

    Attributes:
      made: copies by the identity of their weights, the layout and the input axis, each with a
        reference that tells whether the weights still exist.
    """

    def __init__(self, store: Store):
        self._store = store
        self.made: dict[tuple[int, str, int], tuple[weakref.ref, jax.Array]] = {}
        # Outputs side by side of the fastest layout; 0: the weights as they are.
        self._fastest: dict[Sizes, int] = {}

    def add_copies(self, params: Params, drafters: str | Sequence[str], batch: int) -> Params:
        """Add copies of the weights of a model's target and of the drafters of a call.

        They are made once for each array, and freed with it.

        Args:
          params: the model; it is not changed.
          drafters: name of the drafter, or `ar`; or names of several.
          batch: number of sequences.

        Returns:
          `params` with copies; as it is where they would not be read or not be faster: on other
          devices than a CPU, for other dtypes than float32, for batches whose rounds have too many
          rows or a single one, and where they would take more than `MOST_MEMORY` of the memory.

        Raises:
          ValueError: `JAXSPEC_PANELS` is neither 0 nor a number of outputs of `COPIES`.
        """
        names = (drafters,) if isinstance(drafters, str) else tuple(drafters)
        # Rounds that draft verify two rows of a sequence at least, and most often `FEW`.
        rows, usual = (batch, batch) if names == ("ar",) else (2 * batch, FEW * batch)
        weights = [params.target, *map(params.drafter, names)]
        # Only calls that may read a copy wait for its measurement.
        if not any(layout.serves(rows) for layout in COPIES.values()) or not _suit(weights):
            return params
        layout = COPIES.get(self.choose(params.spec.target, usual))
        if layout is None or not layout.serves(rows):
            return params
        target, *variables = [self._copy(one, layout) if one else one for one in weights]
        made = {name: one for name, one in zip(names, variables, strict=True) if one}
        return params.replace(target=target, drafters={**params.drafters, **made})

    def choose(self, config: TargetConfig, rows: int) -> int:
        """Return the outputs that copies have side by side; 0 if this processor is to have none.

        Args:
          config: the target.
          rows: rows that most rounds of all sequences verify together.

        Raises:
          ValueError: the switch is neither 0 nor a number of outputs of `COPIES`.
        """
        if not vectorizes_sums():
            return 0
        switch = os.environ.get(SWITCH)
        if not switch:
            sizes = choose_sizes(config, rows)
            if sizes not in self._fastest:
                self._fastest[sizes] = find_fastest(sizes, self._store)
            return self._fastest[sizes]
        choices = [str(lanes) for lanes in (0, *COPIES)]
        if switch not in choices:
            known = ", ".join(choices)
            raise ValueError(f"{SWITCH} is {switch!r}: give one of {known}, or unset it")
        return int(switch)

    def _copy(self, variables: Any, layout: Layout) -> Any:
        def find_or_make(matrix: jax.Array, axis: int) -> jax.Array:
            key = id(matrix), layout.name, axis
            found = self.made.get(key)
            if found is None or found[0]() is not matrix:
                copy = layout.arrange(matrix, axis)[1]
                if copy is matrix:
                    return copy
                # Forget copies with their weights. An identity is used again only after that.
                reference = weakref.ref(matrix, lambda _: self.made.pop(key, None))
                found = self.made[key] = reference, copy
            return found[1]

        return registry.add_copies(variables, layout, find_or_make)


def _suit(weights: Any) -> bool:
    """Whether copies of these arrays can be made, and fit into the memory."""
    leaves = jax.tree.leaves(weights)
    if not all(map(_suits, leaves)):
        return False
    return sum(leaf.nbytes for leaf in leaves) <= MOST_MEMORY * _memory()


def _suits(leaf: Any) -> bool:
    """Whether an array is concrete, on one CPU device, and neither quantised nor of a short float."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    kinds = {device.platform for device in leaf.devices()}
    return kinds == {"cpu"} and len(leaf.devices()) == 1 and leaf.dtype in (jnp.float32, jnp.int32)


def _memory() -> int:
    """Return the bytes of the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
