"""Decode with a target that devices share and with the same target on one device; print what differs.

python sharded_decode.py '{"family": "qwen3", "devices": [8], "batch": 2, "methods": ["ar"]}'
"""

import itertools
import json
import sys
import tempfile
from typing import NamedTuple

import jax
import numpy as np
from sharded_toys import make_params

import jaxspec
from jaxspec.core.state import KVCache
from jaxspec.engine.compilations import compilations
from jaxspec.engine.loop import run
from jaxspec.engine.session import matmul_precision, prepare, run_prefill
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.serve.costs import Costs
from jaxspec.targets.quant import quantize_params
from jaxspec.targets.sharding.place import shard
from pallas_kernels.aot_collectives import list_collectives
from training.methods import METHODS

PROMPTS = [[4, 9, 2, 14, 4, 9], [7], [1, 2, 3], [11, 11]]
SETTINGS = [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.8, "top_k": 7}, {}]
# Made up, so that no test depends on a time: drafting pays.
COSTS = Costs((1.0, 1.2, 1.5), (5.0,) * 3)
OPTIONS = dict(max_new_tokens=14, budget=4, policy=None, ignore_eos=True)


class Alone(NamedTuple):
    """What one device makes of some prompts: texts, and the caches after the prefill."""

    texts: list[list[int]]
    cache: KVCache


def fill_caches(params, prompts, options):
    """Run the prefill; return the session and the state."""
    session = prepare(params, prompts, **options)
    with matmul_precision(session):
        return session, run_prefill(session)


def decode_alone(params, prompts, options) -> Alone:
    """Decode on one device."""
    texts = [out.tokens for out in jaxspec.decode(params, prompts, **options)]
    return Alone(texts, fill_caches(params, prompts, options)[1].cache)


def load_shared(alone, mesh, quantize, experts) -> int:
    """Write a model, and read it back on all devices and on one: count leaves that differ."""
    with tempfile.TemporaryDirectory() as folder:
        jaxspec.save(alone, folder)
        found = jaxspec.load(folder, mesh=mesh, quantize=quantize, experts=experts)
        expected = shard(jaxspec.load(folder, quantize=quantize), mesh, experts)
    assert found.spec == expected.spec
    return sum(
        not (a.sharding.is_equivalent_to(b.sharding, a.ndim) and np.array_equal(a, b))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def compare(alone: Alone, shared, prompts, options) -> dict:
    """Decode on several devices, and look at the program that does."""
    found = [out.tokens for out in jaxspec.decode(shared, prompts, **options)]
    before = compilations()
    jaxspec.decode(shared, [[*prompt[::-1], 5] for prompt in prompts], **options)
    recompiled = compilations() - before
    session, state = fill_caches(shared, prompts, options)
    with matmul_precision(session):
        given = session.params, session.request, state, np.int32(1)
        compiled = run.lower(*given, config=session.config).compile()
    copies = state.cache.k.shape[2] // alone.cache.k.shape[2]
    keys = np.asarray(alone.cache.k)
    off = np.abs(np.asarray(state.cache.k)[:, :, ::copies] - keys).max() / np.abs(keys).max()

    def own(tree) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    return {
        "expected": alone.texts,
        "found": found,
        "recompiled": recompiled,
        "keys_off": float(off),
        "cache": [own(state.cache.k), own(alone.cache.k), copies],
        "state": [own(state), compiled.memory_analysis().alias_size_in_bytes],
        "collectives": list_collectives(compiled.as_text()),
    }


def serve(params, method) -> tuple[list, int]:
    """Serve requests of several settings side by side: the texts, and compilations on the way."""
    sizes = dict(slots=2, capacity=192, budget=4, edges=(2, 4, 8), max_logprobs=1)
    engine = make_engine(params, method=method, costs=COSTS, **sizes)
    engine.warm_up()
    ids = [
        engine.submit(ServeRequest(tuple(prompt), max_new_tokens=10, logprobs=1, **settings))
        for prompt, settings in zip(PROMPTS, SETTINGS, strict=True)
    ]
    texts, before = {id: [] for id in ids}, compilations()
    while not engine.idle:
        for update in engine.visit():
            texts[update.id] += update.tokens
    return [texts[id] for id in ids], compilations() - before


def main(request: dict) -> dict:
    methods, experts = request["methods"], request.get("experts", "channel")
    trained = tuple(method for method in methods if method in METHODS)
    alone = make_params(request["family"], trained, **request.get("sizes", {}))
    if request.get("quantize"):
        alone = quantize_params(alone, request["quantize"])
    results, shared = {}, {}
    for devices in request["devices"]:
        mesh = jax.make_mesh((devices,), ("model",), devices=jax.devices()[:devices])
        for quantize in request.get("load", ()):
            results[f"load {devices} {quantize}"] = load_shared(alone, mesh, quantize, experts)
        shared[devices] = shard(alone, mesh, experts)
        for method in methods if request.get("serve") else ():
            (expected, _), (found, new) = (serve(p, method) for p in (alone, shared[devices]))
            results[f"serve {devices} {method}"] = [expected, found, new]
    for method, temperature in itertools.product(methods, request["temperatures"]):
        options = OPTIONS | {"method": method, "temperature": temperature, "seed": 3}
        prompts = PROMPTS[: request["batch"]]
        one = decode_alone(alone, prompts, options)
        for devices, params in shared.items():
            results[f"{devices} {method} {temperature}"] = compare(one, params, prompts, options)
    return results


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
