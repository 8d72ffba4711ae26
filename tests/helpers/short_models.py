"""Models with few of their layers: their programs compile in half the time.

Programs hold every layer of a model, so the tests of what surrounds the layers need few of them. A
text of a short model makes no sense, and its drafters are still often right.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jaxspec
from jaxspec.core.params import Params


def load_short(drafter: Any = "dflash", dtype: str | None = "float32") -> Params:
    """Load `mini` with two of its six layers; see `jaxspec.load` for the arguments."""
    return shorten(jaxspec.load("mini", drafter=drafter, dtype=dtype))


def shorten(params: Params) -> Params:
    """Keep a target's first and last layer, and the first layer of each drafter that has more."""
    last = params.spec.target.num_layers - 1
    kept = (0, last, last + 1)  # a drafter may read what comes after all layers
    drafters, configs = {}, []
    for name, config in params.spec.drafters:
        near = [
            min(range(3), key=lambda i: abs(kept[i] - layer)) for layer in config.feature_layers
        ]
        config = dataclasses.replace(config, feature_layers=tuple(near))
        drafters[name] = params.drafters[name]
        if getattr(config, "num_layers", 1) > 1:
            config = dataclasses.replace(config, num_layers=1)
            drafters[name] = _keep_layers(drafters[name], (0,))
        configs.append((name, config))
    spec = dataclasses.replace(
        params.spec,
        target=dataclasses.replace(params.spec.target, num_layers=2),
        drafters=tuple(configs),
    )
    return params.replace(
        target=_keep_layers(params.target, (0, last)), drafters=drafters, spec=spec
    )


def _keep_layers(variables: Any, kept: tuple[int, ...]) -> Any:
    weights = variables["params"]
    if "backbone" in weights:  # of DSpark
        backbone = _keep_layers({"params": weights["backbone"]}, kept)["params"]
        return {**variables, "params": {**weights, "backbone": backbone}}
    others = {name: value for name, value in weights.items() if not name.startswith("layers_")}
    layers = {f"layers_{i}": weights[f"layers_{layer}"] for i, layer in enumerate(kept)}
    return {**variables, "params": others | layers}
