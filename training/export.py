"""Write trained weights in Hugging Face form, and read the target back the way it ships.

    python -m training.export --run runs/target --tokenizer jaxspec/zoo/mini --out jaxspec/zoo/mini

Drafters are written by `training.train_drafter` itself when it ends.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from jaxspec.checkpoint import load, save
from jaxspec.config import BlockDrafterConfig, TargetConfig
from jaxspec.io import drafter_weights
from jaxspec.io.drafter_config import drafter_config_to_hf
from jaxspec.io.safetensors_files import WEIGHTS, write_safetensors
from jaxspec.params import Params, Spec
from training.checkpoints import CheckpointError, Checkpoints
from training.data import load_tokenizer
from training.tokenizer import EOS


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
    """Weights in bfloat16, config.json, generation_config.json and the tokenizer into `out`."""
    import jax
    import jax.numpy as jnp

    out.mkdir(parents=True, exist_ok=True)
    eos = load_tokenizer(tokenizer).token_to_id(EOS)
    rounded = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    same = tokenizer.resolve() == out.resolve()
    save(Params(rounded, {}, Spec(config, eos=(eos,), tokenizer=None if same else str(tokenizer))), out)


def export_drafter(params, config: BlockDrafterConfig, target: TargetConfig, out: Path) -> None:
    """Weights in bfloat16 and config.json, in the published DFlash layout."""
    out.mkdir(parents=True, exist_ok=True)
    content = drafter_config_to_hf(config, target.num_layers, target.max_positions, "bfloat16")
    (out / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    write_safetensors(out / WEIGHTS, drafter_weights.to_hf(params, config), "bfloat16")


def load_target(folder: Path) -> Params:
    """The exported target in float32 with bfloat16's values: what drafters must be trained against."""
    return load(str(folder), drafter={}, dtype="float32")


def main(options: ExportOptions) -> None:
    """Export the newest checkpoint of a target run."""
    recipe, state = Checkpoints.read(options.run / "checkpoints")
    names = {field.name for field in dataclasses.fields(TargetConfig)}
    missing = {"hidden_size", "vocab_size"} - set(recipe)
    if missing:
        raise CheckpointError(f"{options.run} is not a target run: its recipe has no {missing.pop()}")
    config = TargetConfig(**{name: value for name, value in recipe.items() if name in names}, tie_embeddings=True)
    export_target(state["params"], config, options.tokenizer, options.out)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(ExportOptions))
