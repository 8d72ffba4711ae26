"""Write a drafter in another format, tensor by tensor as it is stored."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.files import WRITERS, read_config, stored_tensors
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import check_fits
from jaxspec.io import provenance
from jaxspec.io.hub import resolve_drafter, resolve_model
from jaxspec.io.safetensors_files import WeightFiles, read_json
from jaxspec.io.torch_files import open_weights
from jaxspec.targets.hf_config import target_config
from jaxspec.targets.hf_fields import integer
from jaxspec.targets.registry import family_of
from jaxspec.targets.weights import stored_name


def convert(source, destination, to: str, target=None) -> Path:
    """Write the drafter `source` to the directory `destination` in the format `to`; no weight
    changes.

    Args:
      source: directory or hub id, or the name of a drafter that ships with `target`.
      destination: directory to make; it must not hold a model yet.
      to: `dflash` or `jetspec` (one native layout, for vLLM and SGLang), or `speculators` (vLLM).
      target: model that it drafts for. Needed where the source does not say enough: `speculators`
        saves the target's embeddings with the drafter, and its files do not say how many layers the
        target has.

    Returns:
      `destination`.

    Raises:
      FileExistsError: `destination` holds a config.json.
      ValueError: the source cannot be read or does not fit `target`, or the format cannot say what
        it is.
    """
    if to not in WRITERS:
        raise ValueError(f"unknown format {to!r}: choose one of {', '.join(WRITERS)}")
    destination = Path(destination)
    if (destination / "config.json").exists():
        raise FileExistsError(f"{destination} holds a model already: choose another directory")
    model = resolve_model(target) if target is not None else None
    directory = resolve_drafter(source, model) if model is not None else resolve_model(source)
    hf = read_json(directory / "config.json")
    config = read_config(hf)
    if config.causal and to == "dflash":
        to = "jetspec"
    elif to == "jetspec" and not config.causal:
        raise ValueError(
            f"{directory} is a DFlash drafter, whose slots see the whole block: write it with --to dflash"
        )
    if model is None:
        about = _as_recorded(directory, hf)
    else:
        check_fits(config, target_config(read_json(model / "config.json")))
        about = _of_target(model, provenance.recorded(hf), to)
    WRITERS[to](destination, config, stored_tensors(directory, config), about)
    return destination


def _of_target(model: Path, recorded: provenance.Provenance, to: str) -> About:
    """What the target's own files say; what the drafter recorded about its tokenizer is kept, for
    it says what it learnt on.
    """
    config = target_config(read_json(model / "config.json"))
    found = provenance.of_target(model)
    kept = {field: value for field, value in recorded._asdict().items() if value is not None}
    borrowed = {}
    if to == "speculators":
        tensors = WeightFiles(model)
        borrowed = {
            name: tensors[stored_name(config, theirs)]
            for name, theirs in speculators.BORROWED.items()
        }
    return About(
        config.num_layers,
        config.max_positions,
        found._replace(**kept),
        family_of(config).architecture,
        borrowed,
    )


def _as_recorded(directory: Path, hf: dict) -> About:
    """What the drafter's own files say about its target."""
    own, layers = hf.get("jaxspec") or {}, hf.get("transformer_layer_config") or hf
    count = own.get("num_target_layers") or hf.get("num_target_layers")
    if count is None:
        raise ValueError(f"{directory} does not say how many layers its target has: give --target")
    architectures = ((hf.get("speculators_config") or {}).get("verifier") or {}).get(
        "architectures"
    ) or [None]
    borrowed = MappingProxyType({})
    if speculators.is_speculators(hf):
        tensors = open_weights(directory)
        borrowed = {name: tensors[name] for name in speculators.BORROWED if name in tensors}
    positions = integer(layers, "max_position_embeddings")
    return About(count, positions, provenance.recorded(hf), architectures[0], borrowed)
