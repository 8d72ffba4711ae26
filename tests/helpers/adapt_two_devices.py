"""Serve on one device and learn on the other: what happened, as JSON."""

import dataclasses
import json

import adapt_toys as toys
import jax
from serve_toys import make

import jaxspec
from jaxspec.adapt.publish import hash_weights
from jaxspec.adapt.serving import make_adaptive_engine
from jaxspec.call.options import group_options
from jaxspec.core.runtime.compilations import compilations
from jaxspec.serve import ServeRequest

params = toys.make_params()
shape = dict(builder="best_first", budget=8, edges=(2, 16), rounds=4)
learning = dict(factory=make_adaptive_engine, options=dataclasses.replace(toys.ADAPT, rows=60))
engine = make(params, "always-full", **learning, **shape)
engine.warm_up()
student, given = engine.adapts, hash_weights(params.drafters)
device = engine._device
sent = [
    ServeRequest((*toys.PROMPTS[i % 4], i), max_new_tokens=40, temperature=i % 2, seed=i)
    for i in range(8)
]


def serve(requests):
    ids = [engine.submit(one) for one in requests]
    tokens = {id: [] for id in ids}
    while not engine.idle:
        for update in engine.visit():
            tokens[update.id] += update.tokens
    return list(tokens.values())


def visit_while_it_learns():
    """Visits that ended while an update was being made."""
    count, learns = 0, student.adaptation.trainer.update

    def update(*args):
        busy.append(True)
        try:
            return learns(*args)
        finally:
            busy.clear()

    busy, student.adaptation.trainer.update = [], update
    for request in sent * 20:
        engine.submit(request)
        while not engine.idle:
            before = bool(busy)
            engine.visit()
            count += before and bool(busy)
        if count:
            return count
    return count


tokens = serve(sent)
student.wait()
engine.visit()  # the newest version decodes
first, compiled = student.version, compilations()
tokens += serve(sent[:4])
student.wait()
engine.visit()
compiled = compilations() - compiled
expected = [
    jaxspec.decode(
        params,
        list(one.tokens),
        **group_options(
            drafter="ar",
            capacity=320,
            max_new_tokens=40,
            temperature=one.temperature,
            seed=one.seed,
        ),
    ).tokens
    for one in sent
]
places = {
    "target": params.target,
    "decodes": device.params.drafters,
    "state": device.state,
    "learns": (student.adaptation.trainer.train, student.adaptation.buffers.ring),
    "reads": student.adaptation.trainer.target,
}
found = {
    "places": {
        name: sorted({one.id for leaf in jax.tree.leaves(tree) for one in leaf.devices()})
        for name, tree in places.items()
    },
    "head only": sorted(student.adaptation.trainer.target["params"]),
    "equal": tokens == expected + expected[:4],
    "compiled": compiled,
    "versions": [first, student.version],
    "newest": hash_weights(device.params.drafter("jetspec")["params"])
    == hash_weights(student.adaptation.serving),
    "given": given == hash_weights(params.drafters),
    "overlaps": visit_while_it_learns(),
}
engine.close()
print(json.dumps(found))
