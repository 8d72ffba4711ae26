"""The golden TreeFlash drafter with its target, and rounds at given contexts."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from golden_data import golden

import jaxspec
from jaxspec.builders import make_builder
from jaxspec.core.cache import allocate, append
from jaxspec.core.params import Params
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import Request
from jaxspec.drafters.base import Committed
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.plan import DecodeConfig


@functools.cache
def load_treeflash(model: str = "swiglu", conditions: int = 16, root: Path | None = None) -> Params:
    """The target and the drafter in the authors' layout, called `treeflash`; `marginal` is the same
    backbone without a correction.

    Args:
      root: the golden set's folder of TreeFlash; None: the tested one's.
    """
    root = root or golden("treeflash")
    folder = root / "target"
    params = jaxspec.load(folder, drafter={"treeflash": root / "draft"}, dtype="float32")
    config = dataclasses.replace(
        params.spec.drafter("treeflash"), conditions=conditions, correction=model == "swiglu"
    )
    own = dict(params.drafters["treeflash"]["params"])
    if model == "marginal":
        own.pop("correction")
    spec = dataclasses.replace(params.spec, drafters=(("treeflash", config),))
    return Params(params.target, {"treeflash": {"params": own}}, spec)


def settings_of(record: dict) -> dict:
    """The options of a recorded tree or decode: (top_m, top_k, rows, drafter temperature)."""
    return {
        "conditions": record.get("top_m", 16),
        "children": record.get("top_k", 16),
        "rows": record["tree_size"],
        "scale": record.get("drafter_temperature", 1.0),
    }


def trees_at(model, contexts, *, conditions, children, rows, scale=1.0, root=None):
    """The trees of rounds whose committed texts, the root included, are given."""
    params = load_treeflash(model, conditions, root)
    sampling, values = make_sampling()
    builder = make_builder(f"lattice/candidates={children}")
    config = DecodeConfig("treeflash", sampling, builder, budget=rows, score_temperature=scale)
    length = np.array([len(context) for context in contexts])
    tokens = np.stack([np.pad(context, (0, max(length) - len(context))) for context in contexts])

    @jax.jit
    def run(tokens, length):
        batch, count = tokens.shape
        none = np.zeros(batch, np.int32)
        request = Request(none, none, 0, none.astype(np.uint32), values)
        round = make_round(params, request, config)
        plan, place = round.plan, jnp.broadcast_to(jnp.arange(count), tokens.shape)
        layers = plan.drafter.feature_layers
        out = plan.target.apply(params.target, tokens, place, feature_layers=layers)
        new = Committed(
            tokens[:, :-1], tokens[:, 1:], out.features[:, :-1], place[:, 0], length - 1
        )
        start = plan.drafter.init(batch, count, jnp.float32)
        state = plan.drafter.absorb(params.drafters["treeflash"], start, round.target_head, new)
        cache = append(
            allocate(params.spec.target, batch, count, jnp.float32), out.k, out.v, length - 1
        )
        root = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
        session = SimpleNamespace(root=root, done=length < 0, draft=state, cache=cache, block=None)
        return grow(round, session, draft(round, session, None))

    return jax.tree.map(np.asarray, run(tokens.astype(np.int32), length))


def seen_of(tree, index: int) -> np.ndarray:
    """The mask bool [N, N] of one tree of a batch."""
    words = tree.ancestors[index]
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    return bits[:, : len(words)].astype(bool)
