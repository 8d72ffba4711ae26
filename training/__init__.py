"""Recipes that train targets and drafters; each module with a `main` runs as `python -m training.<module> --help`.

In order: `tokenizer`, `train_target`, `export`, `rollouts`, `train_drafter`. They share `loop` (steps, checkpoints, exact
resumption), `optimizer` and `data`. Needs the `train` extra: pip install "jax-speculative[train]".
"""
