"""A small run on a mesh, for subprocesses with several devices or hosts: `python sharded_run.py
'{"out": …, "runs": [...]}'`.

Every run is described by the fields of `LoopOptions` that it sets, "optimizer" and "name"; its
weights go to OUT/NAME.npz.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.processes import HostOptions, connect
from training.run.loop import LoopOptions, fit
from training.run.optimizer import OptimizerOptions, make_optimizer

WIDTH, WORDS, ROWS = 32, 48, 32


def start():
    """About 5000 parameters: two matrices and an embedding that can be sharded, a scale that is too
    small.
    """
    generator = np.random.default_rng(0)
    shapes = {
        "embedding": (WORDS, WIDTH),
        "up": {"kernel": (WIDTH, 64)},
        "down": {"kernel": (64, WIDTH)},
        "scale": (WIDTH,),
    }
    return jax.tree.map(
        lambda shape: (generator.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def loss(params, teacher, batch):
    def forward(params):
        inputs = params["embedding"][batch["tokens"]] * params["scale"]
        return (
            inputs + jnp.tanh(inputs @ params["up"]["kernel"]) @ params["down"]["kernel"]
        ) @ params["embedding"].T

    squared = ((forward(params) - forward(teacher)) ** 2).sum(-1)
    weights = batch["weight"][:, None]
    return {"loss": ((squared * weights).sum(), weights.sum() * squared.shape[1])}


def batches(step):
    generator = np.random.default_rng(step)
    tokens = generator.integers(0, WORDS, (ROWS, 6)).astype(np.int32)
    return {"tokens": tokens, "weight": generator.integers(0, 3, ROWS).astype(np.float32)}


def train(out: Path, name: str, optimizer="adamw", **options):
    loop = LoopOptions(
        out / options.pop("run", name), **({"steps": 20, "save_every": 10} | options)
    )
    teacher = jax.tree.map(lambda leaf: leaf[::-1].copy(), start())
    rates = OptimizerOptions(optimizer, rate=1e-3, muon_rate=5e-3, warmup=3)
    held = {}

    def evaluate(params):
        largest = max(jax.tree.leaves(params), key=lambda leaf: leaf.size)
        if isinstance(largest, jax.Array):
            held["share"] = largest.addressable_shards[0].data.size / largest.size
        return {"accept_none": 0.0}

    params = fit(
        start(),
        make_optimizer(start(), 20, rates),
        loss,
        batches,
        loop,
        {},
        frozen=teacher,
        evaluate=evaluate,
    )
    leaves = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    if jax.process_index() == 0:
        np.savez(out / f"{name}.npz", **leaves, **held)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    connect(HostOptions(**request.get("hosts", {})))
    for each in request["runs"]:
        train(Path(request["out"]), **each)
