"""The decode loop and the prefill of a target that devices share, of shapes alone, to compile for
GPUs that you don't have.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding

from jaxspec.bench.aot.programs import count_held, prefill_program
from jaxspec.call.prefill import prefill
from jaxspec.core.mesh import MODEL, Layout, using
from jaxspec.core.params import Params
from jaxspec.round.loop import run
from jaxspec.targets.sharding.forward import find_splits
from jaxspec.targets.sharding.place import map_leaves, order
from jaxspec.targets.sharding.shares import Split, choose_experts, widen
from jaxspec.targets.sharding.state import find_specs
from pallas_kernels.aot.lower import Program


def shared_prefill(*, devices: int, experts: str, **options: Any) -> Program:
    """Make `jaxspec.bench.aot.programs.prefill_program` of a target that `devices` devices share.

    Args:
      experts: how they share experts, see `jaxspec.load`.
    """
    start = prefill_program(**options)
    mesh = AbstractMesh((devices,), (MODEL,))
    params = share_shapes(start.args[0], mesh, experts)
    around = functools.partial(_trace_for, params.spec.target.vocab_size)
    args = (params, *start.args[1:])
    with around(mesh):
        state = jax.eval_shape(functools.partial(prefill, **start.static), *args)
    facts = {"cache_bytes": count_held(state, devices)}
    return start._replace(args=args, facts=facts, devices=devices, around=around)


def shared_loop(*, devices: int, experts: str, **options: Any) -> Program:
    """Make `jaxspec.bench.aot.programs.decode_loop` of a target that `devices` devices share.

    Args:
      experts: how they share experts, see `jaxspec.load`.
    """
    start = shared_prefill(devices=devices, experts=experts, **options)
    mesh = AbstractMesh((devices,), (MODEL,))
    with start.around(mesh):
        state = jax.eval_shape(functools.partial(prefill, **start.static), *start.args)

    def place(x: jax.ShapeDtypeStruct, spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    state = jax.tree.map(place, state, find_specs(state))
    args = (*start.args[:2], state, jax.ShapeDtypeStruct((), jnp.int32))
    static = {"config": start.static["config"]}
    return start._replace(function=run, args=args, static=static)


def share_shapes(params: Params, mesh: AbstractMesh, experts: str) -> Params:
    """Return the shapes and shardings of a model whose target the devices of a mesh share.

    Args:
      params: shapes of the model on one device.
      experts: how they share experts, see `jaxspec.load`.
    """
    devices = mesh.size
    config = choose_experts(params.spec.target, devices, experts)
    shapes = jax.eval_shape(lambda given: map_leaves(order, given, config, devices), params.target)
    spec = dataclasses.replace(params.spec, target=widen(config, devices))

    def place(x: jax.ShapeDtypeStruct, split: Split) -> jax.ShapeDtypeStruct:
        where = NamedSharding(mesh, split.spec(x.ndim))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    target = jax.tree.map(place, shapes, find_splits(shapes, spec.target, devices))
    return params.replace(target=target, spec=spec)


def _trace_for(vocab: int, mesh: Any) -> Any:
    return using(Layout(mesh, vocab))
