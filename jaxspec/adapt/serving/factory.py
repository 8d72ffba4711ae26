"""Make an engine whose drafter learns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxspec.adapt.adaptation import Adaptation
from jaxspec.adapt.deciders import Decider, make_decider
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.publish import identify_weights
from jaxspec.adapt.served import check_drafter, copy_drafter
from jaxspec.adapt.serving.placement import (
    choose_device,
    copy_to,
    find_places,
    place_student,
)
from jaxspec.adapt.serving.student import Student, overwrite
from jaxspec.adapt.turns import OwnDevice, SharedDevice
from jaxspec.core.params import Params
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.serve import Engine, make_engine


@under_own_settings
def make_adaptive_engine(
    params: Params,
    decider: str | Decider = "bandit-paired",
    *,
    drafter: str | Sequence[str] | None = None,
    options: AdaptOptions | None = None,
    folder: str | Path | None = None,
    device: Any = None,
    seed: int = 0,
    **engine: Any,
) -> Engine:
    """Make an engine that trains its drafter on what it serves, for one tenant.

    Texts are those of an engine that does not. A request with `adapt=False` leaves nothing behind.

    Args:
      params: from `jaxspec.load`; it is not changed.
      decider, options, seed: see `jaxspec.adapt.AdaptiveSession`.
      drafter: the drafter that learns; of several names the first; None: the default one.
      folder: where published versions are kept. The engine begins with the newest one there.
      device: a `jax.Device` to learn on, while the engine decodes (None: another one of the same
        kind as the engine's, if this process has one). On the engine's own device, one pass of
        training runs between two visits at most.
      engine: further options of `jaxspec.serve.make_engine`.

    Raises:
      TypeError, ValueError: see `jaxspec.adapt.AdaptiveSession` and `make_engine`.
    """
    chosen = make_decider(decider, (options or AdaptOptions()).room)
    names = [drafter] if drafter is None or isinstance(drafter, str) else list(drafter)
    name = check_drafter(params, names[0])
    if not chosen.learns:
        return make_engine(params, drafter=drafter, **engine)
    device = choose_device(params, device)
    turns = SharedDevice() if device is None else OwnDevice()
    placed = params if device is None else place_student(params, name, device)
    identity = None if folder is None else identify_weights(params, name)
    with jax.default_device(device):
        given = {"drafter": name, "options": options, "folder": folder, "seed": seed}
        adaptation = Adaptation(
            placed, chosen, **given, clock=turns.clock, turns=turns, identity=identity
        )
    params = copy_drafter(params, name)
    # What a folder holds; and the program that publishes is compiled now.
    places = find_places(params.drafter(name)["params"])
    params = overwrite(params, name, copy_to(places, adaptation.serving))
    with jax.default_device(device):
        student = Student(adaptation, turns, device, places)
    made = make_engine(params, drafter=drafter or name, adapts=student, **engine)
    weakref.finalize(made, student.stop).atexit = False
    return made
