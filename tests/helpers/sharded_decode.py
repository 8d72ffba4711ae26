"""Decode with a target that devices share and with the same target on one device; print what
differs.

python sharded_decode.py '{"family": "qwen3",
  "cases": [{"method": "ar", "temperature": 1.0, "devices": 8, "batch": 2}]}'
"""

import dataclasses
import functools
import json
import sys
import tempfile
from typing import NamedTuple

import jax
import numpy as np
from sharded_toys import make_params

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.run import run_to_end
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.state import KVCache
from jaxspec.round.loop import run
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.targets.layouts.quant import quantize_params
from jaxspec.targets.sharding.place import shard
from jaxspec.tuner.serving.costs import Costs
from pallas_kernels.aot.collectives import list_collectives
from training.drafters import records

PROMPTS = [[4, 9, 2, 14, 4, 9], [7], [1, 2, 3], [11, 11]]
PENALISED = {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "min_tokens": 4}
SETTINGS = [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.8, "top_k": 7}, PENALISED]
# Made up, so that no test depends on a time: drafting pays.
COSTS = Costs((1.0, 1.2, 1.5), (5.0,) * 3)


def make_mesh(devices: int):
    return jax.make_mesh((devices,), ("model",), devices=jax.devices()[:devices])


def make_options(method: str, temperature: float) -> dict:
    options = dict(max_new_tokens=14, budget=4, policy=None, ignore_eos=True, seed=3)
    return options | {"drafter": method, "temperature": temperature}


class Alone(NamedTuple):
    """What one device makes of some prompts without drafts: texts, and the cache of the prefill
    with the places of the layers in it.
    """

    texts: list[list[int]]
    cache: KVCache
    places: tuple[tuple[int, int], ...]


def read_layer(cache: KVCache, place: tuple[int, int]) -> np.ndarray:
    """Keys [B, K, S, D] of a layer."""
    group, index = place
    return np.asarray(cache.k[group])[index]


def fill_caches(params, prompts, options):
    """Run the prefill; return the session and the state."""
    session = prepare(params, prompts, **group_options(**options))
    with matmul_precision(session):
        return session, run_prefill(session)


def decode_alone(params, temperature: float, **more) -> Alone:
    """Decode all prompts on one device. Neither their number nor the drafter changes a text."""
    options = make_options("ar", temperature) | more
    texts = [out.tokens for out in jaxspec.decode(params, PROMPTS, **group_options(**options))]
    places = params.spec.target.list_cache_places()
    return Alone(texts, fill_caches(params, PROMPTS, options)[1].cache, places)


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


def try_counts(family, sizes, experts) -> list:
    """Load a target on 1 to 8 devices: how many leaves differ, or the message that refuses it."""
    params, found = make_params(family, **sizes), []
    for devices in range(1, 9):
        try:
            found.append(load_shared(params, make_mesh(devices), None, experts))
        except ValueError as error:
            found.append(str(error))
    return found


def compare(alone: Alone, shared, batch: int, options) -> dict:
    """Decode on several devices, and look at the program that does."""
    prompts = PROMPTS[:batch]
    found = [out.tokens for out in jaxspec.decode(shared, prompts, **group_options(**options))]
    before = compilations()
    jaxspec.decode(shared, [[*prompt[::-1], 5] for prompt in prompts], **group_options(**options))
    recompiled = compilations() - before
    session, state = fill_caches(shared, prompts, options)
    with matmul_precision(session):
        given = session.params, session.request, state, np.int32(1)
        compiled = run.lower(*given, config=session.config).compile()
    copies, off = state.cache.k[0].shape[2] // alone.cache.k[0].shape[2], []
    for place, own_place in zip(shared.spec.target.list_cache_places(), alone.places, strict=True):
        keys, expected = read_layer(state.cache, place), read_layer(alone.cache, own_place)
        keys = keys[:, :: keys.shape[1] // expected.shape[1]]
        off += [
            np.abs(keys[i, :, :n] - expected[i, :, :n]).max() / np.abs(expected).max()
            for i, n in enumerate(map(len, prompts))
        ]

    def own(tree) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    return {
        "expected": alone.texts[:batch],
        "found": found,
        "recompiled": recompiled,
        "keys_off": float(max(off)),
        "cache": [own(state.cache.k), sum(x.nbytes for x in state.cache.k) // copies, copies],
        "state": [own(state), compiled.memory_analysis().alias_size_in_bytes],
        "collectives": list_collectives(compiled.as_text()),
    }


def serve(params, method) -> tuple[list, int]:
    """Serve requests of several settings side by side: the texts, and compilations on the way."""
    sizes = dict(slots=2, capacity=192, budget=4, edges=(2, 4, 8), max_logprobs=1)
    engine = make_engine(params, drafter=method, costs=COSTS, **sizes)
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


def decode_shrinking(params, method) -> tuple[list, bool]:
    """Decode texts of very different lengths: the texts, and whether the batch shrank."""
    session = prepare(params, PROMPTS, **group_options(**make_options(method, 1.0)))
    limits = np.array([14, 2, 3, 9], np.int32)
    session = dataclasses.replace(session, request=session.request.replace(limit=limits))
    with matmul_precision(session):
        done = run_to_end(session, run_prefill(session), shrink=True)
    texts = zip(np.asarray(done.state.tokens), limits, strict=True)
    return [tokens[:limit].tolist() for tokens, limit in texts], done.shrunk


def main(request: dict) -> dict:
    if "counts" in request:
        return {str(number): try_counts(*one) for number, one in enumerate(request["counts"])}
    experts, cases = request.get("experts", "channel"), request.get("cases", ())
    serves = request.get("serve", [])
    shrinks = request.get("shrink", [])
    trained = {case["method"] for case in cases} | {method for _, method in (*serves, *shrinks)}
    trained = tuple(record.name for record in records() if record.name in trained)
    alone = make_params(request["family"], trained, **request.get("sizes", {}))
    if request.get("quantize"):
        alone = quantize_params(alone, request["quantize"])
    results = {}
    share = functools.cache(lambda devices: shard(alone, make_mesh(devices), experts))
    decode_on_one = functools.cache(functools.partial(decode_alone, alone))

    for devices, quantize in request.get("load", ()):
        different = load_shared(alone, make_mesh(devices), quantize, experts)
        results[f"load {devices} {quantize}"] = different
    for devices, method in serves:
        (expected, _), (found, new) = (serve(params, method) for params in (alone, share(devices)))
        results[f"serve {devices} {method}"] = [expected, found, new]
    for devices, method in shrinks:
        found = decode_shrinking(share(devices), method)
        results[f"shrink {devices} {method}"] = [decode_on_one(1.0).texts, *found]
    for case in cases:
        method, temperature, devices, batch = (
            case[name] for name in ("method", "temperature", "devices", "batch")
        )
        name = f"{devices} {method} {temperature} {batch}"
        print(name, file=sys.stderr)  # so that a crash says where
        more = case.get("options", {})
        options = make_options(method, temperature) | more
        expected = decode_on_one(temperature, **more)
        results[name] = compare(expected, share(devices), batch, options)
    return results


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
