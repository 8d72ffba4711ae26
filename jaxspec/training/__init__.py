"""In a clone, `jaxspec.training` is the folder `training/` beside `jaxspec/`.

A wheel has that folder's own files here, see setup.py. They need the `train` extra.
"""

from pathlib import Path

from jaxspec.core.runtime.distribution import TRAIN, require

require("train", *TRAIN, importer=__name__)
__path__ = [str(Path(__file__).parents[2] / "training")]
