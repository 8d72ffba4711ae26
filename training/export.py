"""Write trained weights in Hugging Face form.

    python -m jaxspec.training.export --run runs/target --tokenizer jaxspec/zoo/mini \\
        --out jaxspec/zoo/mini

`training.train_drafter` writes its drafter by `write_drafter` when it ends.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.io.files.atomic import staging
from jaxspec.io.weights.provenance import write_training_cost
from jaxspec.zoo.save import save, save_drafter

from .data.documents import load_bpe_tokenizer
from .drafters import named
from .report import Card, make_model_card, measure_training_cost, plot_run
from .run.checkpoints import CheckpointError, Checkpoints
from .run.command import one_line_errors
from .tokenizer import EOS
from .train_target import make_target_config


@dataclasses.dataclass
class ExportOptions:
    """Options of the export of a target.

    Attributes:
      run: folder of a `training.train_target` run.
      tokenizer: folder with the tokenizer the target was trained with; its files are copied.
      out: folder to write.
    """

    run: Path
    tokenizer: Path
    out: Path


def export_target(params, config: TargetConfig, tokenizer: Path, out: Path) -> None:
    """Write bfloat16 weights, config.json, generation_config.json and the tokenizer to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    eos = load_bpe_tokenizer(tokenizer).token_to_id(EOS)
    rounded = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    same = tokenizer.resolve() == out.resolve()
    save(
        Params(rounded, {}, Spec(config, eos=(eos,), tokenizer=None if same else str(tokenizer))),
        out,
    )


def export_drafter(params, config, target: Params, out: Path) -> None:
    """Write bfloat16 weights and config.json, with a record of the target.

    The layout is that of `jaxspec.zoo.save.save_drafter`.
    """
    rounded = jax.tree.map(
        lambda leaf: (
            np.asarray(leaf).astype(ml_dtypes.bfloat16)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        params,
    )
    save_drafter(target, rounded, config, out)


def write_drafter(
    options,
    params,
    config,
    target: Params,
    recipe: dict,
    arguments: Sequence[str],
) -> None:
    """Write weights, resolved options, plot and card: all of them, or none.

    Args:
      options: `training.train_drafter.DrafterOptions`.
      params: the drafter's variables.
      config: the drafter's.
      target: the model that it drafts for.
      recipe: see `training.recipe.describe_recipe`.
      arguments: the command line, for the card.
    """
    with staging(options.out) as folder:
        export_drafter(params, config, target, folder)
        (folder / "training.json").write_text(json.dumps(recipe, indent=2) + "\n")
        metrics = options.loop.run / "metrics.jsonl"
        write_training_cost(folder, measure_training_cost(metrics, options.batch))
        plot_run(metrics, folder / "training.png")
        card = _make_card(options, config, recipe, arguments)
        (folder / "README.md").write_text(make_model_card(card, metrics))


def _make_card(options, config, recipe: dict, arguments: Sequence[str]) -> Card:
    layers = (
        f" It reads the target's layers {config.feature_layers}." if config.feature_layers else ""
    )
    return Card(
        name=f"{options.model.kind} for {recipe['target']}",
        what=f"{named(options.model.kind).what}: "
        f"it drafts up to {config.depth} tokens per round.{layers}",
        target=recipe["target"],
        data=", ".join(recipe["data"]["files"]),
        command=" ".join(["jaxspec train", *_without_folders(arguments)]),
        licence="that of the target and of the data",
        options=_flat(recipe),
        plot="training.png",
    )


def _without_folders(arguments: Sequence[str]) -> list[str]:
    """Drop folders from arguments: a card may be published, and where files lay says nothing."""
    return [
        Path(argument).name if "/" in argument and Path(argument).exists() else argument
        for argument in arguments
    ]


def _flat(tree: dict, prefix: str = "") -> dict:
    leaves = {}
    for name, value in tree.items():
        leaves |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return leaves


def main(options: ExportOptions) -> None:
    """Export the newest checkpoint of a target run."""
    recipe, state = Checkpoints.read(options.run / "checkpoints")
    missing = {"hidden_size", "vocab_size"} - set(recipe)
    if missing:
        raise CheckpointError(
            f"{options.run} is not a target run: its recipe has no {missing.pop()}"
        )
    export_target(state["params"], make_target_config(recipe), options.tokenizer, options.out)


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(ExportOptions))
