"""Write trained weights in Hugging Face form.

    python -m jaxspec.training.export --run runs/target --tokenizer jaxspec/zoo/mini --out jaxspec/zoo/mini

Drafters are written by `training.train_drafter` itself when it ends.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.zoo.save import save, save_drafter

from .data.documents import load_bpe_tokenizer
from .run.checkpoints import CheckpointError, Checkpoints
from .run.command import one_line_errors
from .tokenizer import EOS


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


def main(options: ExportOptions) -> None:
    """Export the newest checkpoint of a target run."""
    recipe, state = Checkpoints.read(options.run / "checkpoints")
    names = {field.name for field in dataclasses.fields(TargetConfig)}
    missing = {"hidden_size", "vocab_size"} - set(recipe)
    if missing:
        raise CheckpointError(
            f"{options.run} is not a target run: its recipe has no {missing.pop()}"
        )
    config = TargetConfig(
        **{name: value for name, value in recipe.items() if name in names}, tie_embeddings=True
    )
    export_target(state["params"], config, options.tokenizer, options.out)


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(ExportOptions))
