"""The first weights of a run: random, or those of another drafter, trained or frozen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params
from jaxspec.drafters.files import for_target, load_drafter, read_config
from jaxspec.io.config_entries import read_entries

from .drafter_model import ModelOptions
from .methods import find_method, head_is_trained
from .optimizer import zero_residual


def make_first_weights(
    kind: str, options: ModelOptions, config, seed: int, target: Params, ids=None
):
    """Initialise float32 variables.

    An output projection of the drafter's own starts as the target's columns `ids`.
    """
    head = target.target["params"]
    head = head["embedding"].T if target.spec.target.tie_embeddings else head["lm_head"]
    head = head if ids is None else head[:, ids]
    variables = find_method(kind).init(config, seed, jnp.asarray(head, jnp.float32))
    return zero_residual(variables) if options.zero_residual else variables


def read_first_weights(folder: Path, kind: str, config, target: TargetConfig) -> dict:
    """Read the float32 weights of the drafter in `folder`, to train `config` from.

    Returns:
      {"params"}, the whole drafter's; or {"params": {"backbone"}}, if it is a backbone to which
      `config` adds heads.

    Raises:
      ValueError: the drafter has other sizes than `config`.
    """
    found = for_target(read_config(read_entries(folder / "config.json")), target)
    find_backbone = find_method(kind).backbone
    wanted = find_backbone(config, found) if find_backbone else config
    # What is trained does not depend on the path scores, nor, unless it has a head of its own, on
    # which tokens are drafted.
    same = {"score_temperature": config.score_temperature}
    if not (head_is_trained(config) or getattr(wanted, "markov_rank", 0)):
        same["draft_vocab_size"] = config.draft_vocab_size
    if dataclasses.replace(found, **same) != wanted:
        raise ValueError(
            f"{folder} holds {found}, and the options describe {wanted}: give its own sizes"
        )
    weights = load_drafter(folder, found, "float32")["params"]
    if wanted is config:
        return {"params": weights}
    return {"params": {"backbone": weights.get("backbone", weights)}}


def split_frozen(variables: dict, names: tuple[str, ...]) -> tuple[dict, dict]:
    """Split variables {"params"} into those to train, {"params"}, and {name: frozen submodule}."""
    params = variables["params"]
    trained = {name: leaves for name, leaves in params.items() if name not in names}
    return {"params": trained}, {name: params[name] for name in names}


def join_frozen(trained: dict, frozen: dict) -> dict:
    """Undo `split_frozen`."""
    return {"params": trained["params"] | frozen}
