"""Save a target with its drafters in Hugging Face layout."""

from __future__ import annotations

import shutil
from pathlib import Path

from jaxspec.core.params import Params, check_params
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.drafters import files
from jaxspec.drafters.format import About, write_directory
from jaxspec.io.files.atomic import staging, write_json
from jaxspec.io.weights import provenance
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config_to_hf
from jaxspec.targets.families.registry import family_of
from jaxspec.targets.layouts import quant
from jaxspec.targets.sharding.place import refuse
from jaxspec.zoo.places import BEST, DRAFTERS

_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


@under_own_settings
def save(params: Params, directory) -> None:
    """Write the target, `drafters/<name>/` and the tokenizer for `load(directory)`.

    Tensors are saved in the dtype of the weights.

    The folder's files appear when all are written, and replace those there.

    Raises:
      ValueError: the target is quantised, or several devices share it.
      OSError: something cannot be written.
    """
    check_params(params)
    refuse(params, "written")
    with staging(directory) as folder:
        _write(params, folder)


def _write(params: Params, directory: Path) -> None:
    spec = params.spec
    tensors = target_weights.to_hf(params.target, spec.target)
    write_directory(directory, target_config_to_hf(spec.target, str(params.dtype)), tensors)
    write_json(directory / "generation_config.json", {"eos_token_id": list(spec.eos)})
    for name, config in spec.drafters:
        save_drafter(params, params.drafters[name], config, directory / DRAFTERS / name)
    if len(spec.drafters) > 1:
        write_json(directory / DRAFTERS / BEST, {"order": [name for name, _ in spec.drafters]})
    for pattern in _TOKENIZER_FILES if spec.tokenizer else ():
        for source in Path(spec.tokenizer).glob(pattern):
            shutil.copyfile(source, directory / source.name)


@under_own_settings
def save_drafter(target: Params, variables, config, directory) -> None:
    """Write one drafter of `target` for `load`, with a record of the target.

    The layout is the drafter's published one, which other engines read too. Tensors are saved in
    the dtype of the weights. Some layouts save tensors of the target with the drafter.

    Raises:
      ValueError: the layout saves tensors of the target, but the target is quantised.
    """
    spec = target.spec
    known = provenance.of_target(spec.tokenizer) if spec.tokenizer else provenance.Provenance()
    sources = files.borrowed_tensors(config).values()
    if sources:
        quant.refuse(
            target.target,
            "written with the drafter: give the target loaded with quantize='none'",
        )
    borrowed = {
        source: target_weights.tensor(target.target, spec.target, source) for source in sources
    }
    about = About(
        spec.target.num_layers,
        spec.target.max_positions,
        known,
        family_of(spec.target).architecture,
        borrowed,
    )
    files.write_drafter(directory, config, variables, about)
