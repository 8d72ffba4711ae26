"""The programs of a serving engine, of shapes alone, to compile for a GPU you don't have."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.aot.options import describe_call
from jaxspec.bench.aot.programs import count_held
from jaxspec.bench.architectures import abstract_params
from jaxspec.core.params import Params
from jaxspec.core.sampling.settings import MIXED
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.serve.choose_sizes import choose_edges
from jaxspec.serve.on_device.feed import feed
from jaxspec.serve.on_device.slot_rounds import Control, Rules
from jaxspec.serve.on_device.slot_settings import make_settings
from jaxspec.serve.on_device.slots import SlotsState, make_slots
from jaxspec.serve.on_device.visit import visit
from pallas_kernels.aot.lower import Program


def visit_program(*, batch: int, capacity: int, rows: int | None = None, **options: Any) -> Program:
    """Make the program `jaxspec.serve.on_device.visit.visit` of `batch` slots; sampling settings
    are not read.

    Args:
      rows: most rows that a round verifies for all slots (default: that of `jaxspec.serve`).
    """
    params, state, config = _make_slots(batch=batch, capacity=capacity, **options)
    edges = choose_edges(batch, make_plan(params.spec, config).widths[-1])
    if rows is not None:
        edges = (*(edge for edge in edges if edge < rows), rows)
    rules = Rules("global", edges)
    control = Control(
        np.int32(1),
        np.bool_(False),
        np.bool_(True),
        np.int32(-1),
        np.ones(len(rules.edges), np.float32),
    )
    given = make_settings(batch), control, np.int32(0)
    arrays = jax.eval_shape(lambda *given: given, *given)
    static = {"config": config, "rules": rules, "part": batch}
    return Program(
        visit, (params, state, *arrays), static, {"cache_bytes": count_held(state.decode)}
    )


def feed_program(*, batch: int, capacity: int, **options: Any) -> Program:
    """Make the program `jaxspec.serve.on_device.feed.feed` of `batch` slots."""
    params, state, config = _make_slots(batch=batch, capacity=capacity, **options)
    shapes = ((1, capacity), (4,))
    arrays = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    facts = {"cache_bytes": count_held(state.decode)}
    return Program(feed, (params, state, *arrays), {"config": config}, facts)


def _make_slots(
    *, batch: int, capacity: int, **options: Any
) -> tuple[Params, SlotsState, DecodeConfig]:
    """Return the shapes of the weights and of the slots that options of `decode_loop` describe."""
    spec, config = describe_call(**options, capacity=capacity)
    config = dataclasses.replace(config, sampling=MIXED)
    params = abstract_params(spec, jnp.dtype(options["dtype"]), options["quantize"])
    state = jax.eval_shape(lambda given: make_slots(given, config, batch, capacity), params)
    return params, state, config
