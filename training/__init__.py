"""Recipes that train targets and drafters.

Modules with a `main` run as `python -m training.<module> --help`, in this order: `tokenizer`,
`train_target`, `export`, `regenerate`, `train_drafter`. `sweep` runs lists of drafter recipes. They
share `loop` (steps, checkpoints, exact resumption), `sharding` and `optimizer`. They need the
`train` extra: pip install "jax-speculative[train]".
"""
