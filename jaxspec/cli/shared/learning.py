"""Options of a drafter that learns: its sizes, and an engine with it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import options
from jaxspec.core.runtime import distribution

if TYPE_CHECKING:
    from jaxspec.adapt import AdaptOptions
    from jaxspec.core.params import Params
    from jaxspec.serve.engine import Engine


def add_sizes(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the sizes of buffers and the rates."""
    add, default = parser.add_argument, options.DEFAULT
    add("--head-room", type=int, default=512, help=f"positions of a head-only update {default}")
    add("--full-room", type=int, default=1024, help=f"positions of a full update {default}")
    add("--head-rate", type=float, default=1e-4, help=f"its learning rate {default}")
    add("--full-rate", type=float, default=3e-5, help=f"its learning rate {default}")


def read_sizes(arguments: argparse.Namespace) -> AdaptOptions:
    """Read what `add_sizes` added.

    Raises:
      ValueError: a value is not above 0, or not finite.
    """
    from jaxspec.adapt import AdaptOptions

    for name in ("head_room", "full_room", "head_rate", "full_rate"):
        value = getattr(arguments, name)
        if not 0 < value < math.inf:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is {value}: give a number above 0")
    learner = dataclasses.replace(
        AdaptOptions().learner, head_rate=arguments.head_rate, full_rate=arguments.full_rate
    )
    room = {"head": arguments.head_room, "full": arguments.full_room}
    return AdaptOptions(learner=learner, room=room)


def add_adaptation(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server whose drafter learns."""
    group = parser.add_argument_group("a drafter that learns", "for one tenant; needs optax")
    group.add_argument(
        "--adapt", metavar="DECIDER", help="train the drafter on what is served: bandit-paired, …"
    )
    group.add_argument(
        "--adapt-folder",
        type=Path,
        metavar="DIR",
        help="keep published versions here, and begin with the newest; needs orbax",
    )
    group.add_argument(
        "--adapt-device",
        type=_parse_device,
        metavar="N",
        help="train on this device, by number or `cpu`, while another one serves; 0: between visits "
        "of the one that serves (default: the second one, if there is one)",
    )
    add_sizes(group)


def _parse_device(text: str) -> int | str:
    if text != "cpu" and not re.fullmatch("[0-9]{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no device: give a number, or cpu")
    return text if text == "cpu" else int(text)


def make_engine(arguments: argparse.Namespace, params: Params, options: dict[str, Any]) -> Engine:
    """Make an engine whose drafter learns."""
    from jaxspec.adapt.serving import make_adaptive_engine

    return make_adaptive_engine(
        params,
        arguments.adapt,
        options=read_sizes(arguments),
        folder=arguments.adapt_folder,
        device=find_device(arguments.adapt_device),
        **options,
    )


def find_device(named: int | str | None) -> Any:
    """Return the device of `--adapt-device`; None: it is to be chosen.

    Raises:
      ValueError: there is no such device.
    """
    import jax

    if named is None:
        return None
    try:
        return jax.devices("cpu")[0] if named == "cpu" else jax.local_devices()[named]
    except (IndexError, RuntimeError):
        found = ", ".join(f"{n} ({one})" for n, one in enumerate(jax.local_devices()))
        raise ValueError(f"there is no device {named} to adapt on: give one of {found}") from None


def check_adaptation(arguments: argparse.Namespace) -> None:
    """Refuse options of a drafter that learns without one, and libraries that are missing.

    Raises:
      ValueError: `--adapt` is not given, or the decider is unknown.
    """
    if arguments.adapt is None:
        for name in ("adapt_folder", "adapt_device"):
            if getattr(arguments, name) is not None:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is given without --adapt: name a decider too")
        return
    from jaxspec.adapt import make_decider

    make_decider(arguments.adapt, read_sizes(arguments).room)
    distribution.require("train", "optax", *(["orbax"] if arguments.adapt_folder else []))
