"""Decode with a target that devices share and with the same target on one device; print what differs.

python sharded_decode.py '{"family": "qwen3", "devices": [8], "batch": 2, "methods": ["ar"]}'
"""

import json
import sys
import tempfile

import jax
import numpy as np
from sharded_toys import make_params

import jaxspec
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


def fill_caches(params, prompts, options):
    """Run the prefill, and lower the loop over rounds."""
    session = prepare(params, prompts, **options)
    with matmul_precision(session):
        state = run_prefill(session)
        given = session.params, session.request, state, np.int32(1)
        return state, run.lower(*given, config=session.config)


def load_shared(alone, mesh, quantize) -> int:
    """Write a model, and read it back on all devices and on one: count leaves that differ."""
    with tempfile.TemporaryDirectory() as folder:
        jaxspec.save(alone, folder)
        found = jaxspec.load(folder, mesh=mesh, quantize=quantize)
        expected = shard(jaxspec.load(folder, quantize=quantize), mesh)
    assert found.spec == expected.spec
    return sum(
        not (a.sharding.is_equivalent_to(b.sharding, a.ndim) and np.array_equal(a, b))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def compare(alone, shared, prompts, options) -> dict:
    """Decode on one device and on all, and look at the program of the latter."""
    texts = [[x.tokens for x in jaxspec.decode(p, prompts, **options)] for p in (alone, shared)]
    before = compilations()
    jaxspec.decode(shared, [[*prompt[::-1], 5] for prompt in prompts], **options)
    recompiled = compilations() - before
    whole, _ = fill_caches(alone, prompts, options)
    state, lowered = fill_caches(shared, prompts, options)
    compiled = lowered.compile()
    copies = state.cache.k.shape[2] // whole.cache.k.shape[2]
    keys = np.asarray(whole.cache.k)
    off = np.abs(np.asarray(state.cache.k)[:, :, ::copies] - keys).max() / np.abs(keys).max()

    def own(tree) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    return {
        "expected": texts[0],
        "found": texts[1],
        "recompiled": recompiled,
        "keys_off": float(off),
        "cache": [own(state.cache.k), own(whole.cache.k), copies],
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
    methods = request["methods"]
    trained = tuple(method for method in methods if method in METHODS)
    alone = make_params(request["family"], trained, **request.get("sizes", {}))
    if request.get("quantize"):
        alone = quantize_params(alone, request["quantize"])
    results = {}
    for devices in request["devices"]:
        mesh = jax.make_mesh((devices,), ("model",), devices=jax.devices()[:devices])
        for quantize in request.get("load", ()):
            results[f"load {devices} {quantize}"] = load_shared(alone, mesh, quantize)
        shared = shard(alone, mesh)
        for method in methods if request.get("serve") else ():
            (expected, _), (found, new) = (serve(p, method) for p in (alone, shared))
            results[f"serve {devices} {method}"] = [expected, found, new]
        for method in methods:
            for temperature in request["temperatures"]:
                options = OPTIONS | {"method": method, "temperature": temperature, "seed": 3}
                options |= request.get("options", {})
                key = f"{devices} {method} {temperature}"
                prompts = PROMPTS[: request["batch"]]
                results[key] = compare(alone, shared, prompts, options)
    return results


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
