"""Recipes that train targets and drafters; each module with a `main` runs as `python -m
training.<module> --help`.

In order: `tokenizer`, `train_target`, `export`, `regenerate`, `train_drafter`; `sweep` runs lists
of drafter recipes. They share `loop` (steps, checkpoints, exact resumption), `sharding` and
`optimizer`. Needs the `train` extra: pip install "jax-speculative[train]".
"""
