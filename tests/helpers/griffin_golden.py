"""The golden GRIFFIN drafter with its target."""

import functools

from golden_data import golden

import jaxspec
from jaxspec.core.params import Params


@functools.cache
def load_griffin() -> Params:
    """The target and the drafter in the authors' layout, called `griffin`."""
    folder = golden("griffin", "target")
    return jaxspec.load(folder, drafter=golden("griffin", "draft"), dtype="float32")
