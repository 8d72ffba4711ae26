"""Load models on several devices, and compare with what one device loads, placed on them.

python sharded_load.py '[{"folder": FOLDER, "devices": 2, "quantize": null, "experts": "channel"}]'
prints for each how many arrays differ in bits, dtype or place.
"""

import json
import sys

import jax
import numpy as np

import jaxspec
from jaxspec.targets.sharding.place import shard


def count_different(folder, devices, quantize, experts):
    mesh = jax.make_mesh((devices,), ("model",), devices=jax.devices()[:devices])
    options = dict(drafter={}, dtype="float32", quantize=quantize)
    found = jaxspec.load(folder, mesh=mesh, experts=experts, **options)
    expected = shard(jaxspec.load(folder, **options), mesh, experts)
    assert found.spec == expected.spec
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    return sum(
        not (
            a.dtype == b.dtype
            and a.sharding.is_equivalent_to(b.sharding, a.ndim)
            and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        )
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


if __name__ == "__main__":
    print(json.dumps([count_different(**case) for case in json.loads(sys.argv[1])]))
