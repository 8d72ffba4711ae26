"""The first weights of a run: random, or those of another drafter, trained or frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params
from jaxspec.core.recurrent import refuse_recurrent
from jaxspec.drafters.files import find_config, for_target, load_drafter

from .model_options import ModelOptions
from .record import TrainingRecord


def draw_weights(model, seed: int, inputs, touch: Callable, head: jax.Array | None = None):
    """Initialise float32 variables {"params": ...} of a Flax module.

    Args:
      model: the module.
      seed: of the random weights.
      inputs: arguments of `touch` after the module.
      touch: method that uses all weights.
      head: [E, D], initial output projection, for example the target's columns of the draft
        vocabulary; None draws it at random.
    """
    start = jax.jit(lambda key: model.init(key, *inputs, method=touch))
    params = start(jax.random.key(seed))["params"]
    own = {} if head is None else {"lm_head": jnp.asarray(head, jnp.float32)}
    return {"params": params | own}


def _refuse(target: TargetConfig) -> None:
    # Rows of the data hold several texts, and states would run on from one into the next.
    refuse_recurrent(target, "be trained for yet: train for one whose layers are all of attention")


def make_first_weights(
    record: TrainingRecord, options: ModelOptions, config, seed: int, target: Params, ids=None
):
    """Initialise float32 variables.

    An output projection of the drafter's own starts as the target's columns `ids`.
    """
    _refuse(target.spec.target)
    head = target.target["params"]
    head = head["embedding"].T if target.spec.target.tie_embeddings else head["lm_head"]
    head = head if ids is None else head[:, ids]
    variables = record.init(config, seed, jnp.asarray(head, jnp.float32))
    return record.zero_residual(variables) if options.zero_residual else variables


def read_first_weights(
    folder: Path, record: TrainingRecord, config, target: TargetConfig
) -> tuple[dict, bool]:
    """Read the float32 weights of the drafter in `folder`, to train `config` from.

    Returns:
      ({"params"}, whether they are the whole drafter's). If not, they are those of the backbone
      alone, to which `config` adds heads, under its name.

    Raises:
      ValueError: the drafter has other sizes than `config`.
    """
    _refuse(target)
    found = for_target(find_config(folder), target)
    wanted = record.backbone.find(config, found) if record.backbone else config
    # What is trained does not depend on the path scores, nor, unless weights have an axis of them,
    # on which tokens are drafted.
    same = {"score_temperature": config.score_temperature}
    if not (record.trains_head or record.sized_by_vocabulary(wanted)):
        same["draft_vocab_size"] = config.draft_vocab_size
    if dataclasses.replace(found, **same) != wanted:
        raise ValueError(
            f"{folder} holds {found}, and the options describe {wanted}: give its own sizes"
        )
    weights = load_drafter(folder, found, "float32")["params"]
    if wanted is config or record.backbone is None:
        return {"params": weights}, True
    name = record.backbone.name
    return {"params": {name: weights.get(name, weights)}}, False


def split_frozen(variables: dict, names: tuple[str, ...]) -> tuple[dict, dict]:
    """Split variables {"params"} into those to train, {"params"}, and {name: frozen submodule}."""
    params = variables["params"]
    trained = {name: leaves for name, leaves in params.items() if name not in names}
    return {"params": trained}, {name: params[name] for name in names}


def join_frozen(trained: dict, frozen: dict) -> dict:
    """Undo `split_frozen`."""
    return {"params": trained["params"] | frozen}
