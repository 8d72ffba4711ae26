"""Recipes that train targets and drafters.

They are imported as `jaxspec.training`. `jaxspec regenerate` and `jaxspec train` run two of them;
all modules with a `main` run as `python -m jaxspec.training.<module> --help`, in this order:
`tokenizer`, `train_target`, `export`, `regenerate`, `train_drafter`. They share `run` (steps,
checkpoints, exact resumption, devices, optimizers), `data` and `loss`, and `drafters` has a place
for each drafter. They need the `train` extra.
"""

from jaxspec.core.runtime.distribution import TRAIN, require

require("train", *TRAIN, importer=__name__)
