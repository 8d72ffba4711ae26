"""Diagnose a drafter with its target: a short decode, also with shifted feature layers.

A drafter that reads the wrong layers, or was trained with another tokenizer, does not change the
output: verification hides the mistake, and decoding is merely slow. So the doctor measures
acceptance.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.drafters.files import borrowed_tensors, for_target, read_config
from jaxspec.drafters.registry import record_of
from jaxspec.engine.api import decode
from jaxspec.engine.token_ids import to_ids
from jaxspec.io import provenance
from jaxspec.io.config_entries import read_entries
from jaxspec.io.hub import resolve_drafter, resolve_model
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.io.torch_files import open_weights
from jaxspec.targets.hf_config import target_config
from jaxspec.targets.weights import stored_name
from jaxspec.zoo.checkpoint import load
from jaxspec.zoo.inspect import describe_checkpoint
from jaxspec.zoo.probe import gain, measure_fit

PROMPTS = (
    "Question: A shop sells pens at 3 dollars each. How much do 7 pens cost?\nAnswer:",
    "def read_lines(path):\n",
    "It was a cold morning, and the streets were",
    "The three most important things to know about planets are",
    "Question: Tom has 12 apples and gives 5 to Ann. He then buys 8 more. How many apples does Tom have?\nAnswer:",
    "class Stack:\n    def __init__(self):\n",
    "The old house stood at the end of the lane, and",
    "import os\n\ndef main():\n",
)
# Standard errors by which another convention must fit better before it is called the right one.
_SURE = 3.0
_NAME = "drafter"
_MEMORY = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_FLAGS",
)
_STATS = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")


def diagnose(
    model, drafter, *, prompts=None, max_new_tokens: int = 32, dtype: str | None = None
) -> dict[str, Any]:
    """Check a pair of target and drafter.

    Args:
      model, drafter: as for `jaxspec.load`; one drafter.
      prompts: a list of prompts as for `jaxspec.decode` (default: `PROMPTS`, or random token ids
        for a target without a tokenizer, which say little about a drafter).
      max_new_tokens: number of tokens to decode per prompt, greedily and as a chain.
      dtype: as for `jaxspec.load`.

    Returns:
      JSON-able: `acceptance` (mean acceptance length of the decode, bonus included; None if
      nothing could be decoded), `feature_layers` (outputs, 0-based), `shifts` (for "0", "-1", "1",
      with the layers shifted, over all anchors of the texts: `accepted`, the mean acceptance length
      with the bonus; `logprob`; `gain`, see `jaxspec.zoo.probe`), `warnings` (what costs
      acceptance, one sentence each), `notes`, `environment`, and `drafter` (see
      `jaxspec.zoo.inspect.describe_checkpoint`).

    Raises:
      FileNotFoundError: the model or the drafter does not exist.
      ValueError: either cannot be read, there is no prompt, or max_new_tokens is below 2.
    """
    if max_new_tokens < 2:
        raise ValueError(
            f"max_new_tokens is {max_new_tokens}: the prefill draws the first token, so give at least 2"
        )
    if prompts is not None and not prompts:
        raise ValueError("no prompts: give at least one, or none at all for the built-in ones")
    target = resolve_model(model)
    directory = resolve_drafter(drafter, target)
    hf = read_entries(directory / "config.json")
    config = read_config(hf)
    warnings, notes = _records(target, directory, hf)
    result = {"feature_layers": list(config.feature_layers), "acceptance": None, "shifts": {}}
    result |= {
        "warnings": warnings,
        "notes": notes,
        "environment": environment(),
        "drafter": describe_checkpoint(directory),
    }
    written = result["drafter"]["feature_layers"]
    warnings += [f"feature layers: {written['note']}"] if written["contradicted"] else []
    try:
        for_target(config, target_config(read_entries(target / "config.json")))
    except ValueError as error:
        warnings.append(str(error))
        return result
    warnings += _borrowed(target, directory, hf)
    params = load(model, drafter={_NAME: str(directory)}, dtype=dtype)
    if prompts is None and not params.spec.tokenizer:
        notes.append(
            "the target has no tokenizer, so the prompts are token ids at random: give prompts of its domain"
        )
        prompts = _token_prompts(params.spec.target.vocab_size)
    result["acceptance"], result["shifts"] = _probe(
        params, list(prompts or PROMPTS), max_new_tokens
    )
    warnings += _verdict(config, result["acceptance"], result["shifts"], written)
    return result


def render_diagnosis(result: dict[str, Any]) -> str:
    """Format the diagnosis as lines of text."""
    lines = [f"{name}: {value}" for name, value in result["environment"].items()]
    lines += [
        "",
        f"drafter: {result['drafter']['family']}, feature layers {result['feature_layers']} (outputs, 0-based)",
    ]
    lines += [f"note: {note}" for note in result["notes"]]
    if result["acceptance"] is not None:
        lines.append(
            f"acceptance length: {result['acceptance']:.2f} tokens a round, bonus included (greedy chains)"
        )
    for shift, found in result["shifts"].items():
        layers = [layer + int(shift) for layer in result["feature_layers"]]
        what = (
            "as given"
            if shift == "0"
            else f"log-probability {found['gain']:+.1f} standard errors from the one as given"
        )
        lines.append(
            f"layers {layers}, from every token of the texts: {found['accepted']:.2f}; {what}"
        )
    lines += [f"warning: {warning}" for warning in result["warnings"]] or ["no warnings"]
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """Report versions, device, kernels in use and memory settings."""
    import flax
    import jaxlib

    from pallas_kernels.registry import explain

    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    kernel = explain("tree_attention")
    return {
        "versions": f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, flax {flax.__version__}, "
        f"Python {platform.python_version()}",
        "device": f"{device.platform} {device.device_kind}, {jax.device_count()} in all",
        "kernels": f"tree_attention: {kernel.name} ({kernel.reason})",
        "memory settings": ", ".join(
            f"{name}={os.environ[name]}" for name in _MEMORY if name in os.environ
        )
        or "defaults",
        "device memory": ", ".join(f"{name} {stats[name]:,}" for name in _STATS if name in stats)
        or "not reported",
    }


def _records(target: Path, directory: Path, hf: dict) -> tuple[list[str], list[str]]:
    """Compare what the drafter recorded about its target with the actual target.

    Returns:
      (warnings, notes).
    """
    made_for, here = provenance.recorded(hf), provenance.of_target(target)
    shipped = provenance.of_target(directory)
    warnings, notes = [], []
    tokenizers = {made_for.tokenizer, shipped.tokenizer} - {None, here.tokenizer}
    if here.tokenizer and tokenizers:
        name = made_for.target or "another model"
        warnings.append(
            f"the drafter was trained with another tokenizer.json ({name}'s): use the target it was trained for"
        )
    elif not (made_for.tokenizer or shipped.tokenizer) or not here.tokenizer:
        notes.append(
            "the tokenizers cannot be compared: the drafter recorded none, or the target has none"
        )
    if (
        made_for.chat_template
        and here.chat_template
        and made_for.chat_template != here.chat_template
    ):
        warnings.append(
            "the drafter was trained with another chat template: chats are not in the form it has learnt"
        )
    if made_for.revision and here.revision and made_for.revision != here.revision:
        notes.append(
            f"the drafter was trained for revision {made_for.revision} of the target, this is {here.revision}"
        )
    tokenizer, rows = (
        load_tokenizer(str(target)),
        read_entries(target / "config.json").get("vocab_size"),
    )
    if tokenizer is not None and rows and len(tokenizer) > rows:
        warnings.append(
            f"the target's tokenizer has {len(tokenizer)} tokens and the target {rows} embedding rows"
        )
    return warnings, notes


def _borrowed(target: Path, directory: Path, hf: dict) -> list[str]:
    """Check that tensors of the target saved with the drafter equal the target's.

    The target's own tensors are the ones in use.
    """
    names = borrowed_tensors(read_config(hf), hf)
    if not names:
        return []
    config = target_config(read_entries(target / "config.json"))
    ours, theirs = open_weights(directory), open_weights(target)
    warnings = []
    for name, source in names.items():
        if name not in ours:
            continue
        mine = ours[name]
        other = theirs[stored_name(config, source)].astype(mine.dtype)
        differ = np.flatnonzero(
            np.abs(mine.astype(np.float32) - other.astype(np.float32)).max(axis=-1) > 1e-2
        )
        if differ.size:
            warnings.append(
                f"its {name} differs from the target's in {differ.size} rows, first {differ[0]}: the target's is used"
            )
    return warnings


def _probe(
    params: Params, prompts: list, max_new_tokens: int
) -> tuple[float, dict[str, dict[str, float]]]:
    """Measure the mean acceptance length of greedy chains and how well the feature layers fit.

    Returns:
      The acceptance length, and the fit of the layers as given, one lower and one higher.
    """
    spec, tokenizer = (
        params.spec,
        load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None,
    )
    config = spec.drafter(_NAME)
    ids = [to_ids(prompt, tokenizer, spec.target) for prompt in prompts]
    options = {"method": _NAME, "builder": "chain", "budget": 1 + config.depth, "ignore_eos": True}
    outputs = decode(
        params, [list(map(int, prompt)) for prompt in ids], max_new_tokens=max_new_tokens, **options
    )
    acceptance = sum(out.stats.emitted - 1 for out in outputs) / sum(
        out.stats.rounds for out in outputs
    )
    if record_of(config).rewind is None:
        return acceptance, {}

    sets = {
        str(shift): tuple(layer + shift for layer in config.feature_layers) for shift in (0, -1, 1)
    }
    sets = {
        shift: layers
        for shift, layers in sets.items()
        if min(layers) >= 0 and max(layers) < spec.target.num_layers
    }
    texts = [[*map(int, prompt), *out.tokens] for prompt, out in zip(ids, outputs, strict=True)]
    fits = dict(
        zip(
            sets,
            measure_fit(params, _NAME, texts, [len(prompt) for prompt in ids], list(sets.values())),
            strict=True,
        )
    )
    return acceptance, {
        shift: {
            "accepted": 1 + float(found.accepted.mean()),
            "logprob": float(found.logprob.mean()),
            "gain": gain(fits["0"], found),
        }
        for shift, found in fits.items()
    }


def _token_prompts(vocab_size: int) -> list[list[int]]:
    """Make prompts for a model without a tokenizer: random ids, the same each time."""
    return np.random.default_rng(0).integers(0, vocab_size, (len(PROMPTS), 8)).tolist()


def _verdict(config, acceptance: float, shifts: dict, written: dict[str, Any]) -> list[str]:
    """Turn the figures into warnings; `written` says where and how config.json lists the layers."""
    warnings = []
    shift, best = max(shifts.items(), key=lambda item: item[1]["gain"], default=("0", None))
    if best and best["gain"] > _SURE and best["accepted"] > shifts["0"]["accepted"]:
        outputs = [layer + int(shift) for layer in config.feature_layers]
        inputs = [layer + 1 for layer in outputs]
        warnings.append(
            f"another convention accepts more: outputs of layers {outputs} (0-based; inputs of {inputs}) "
            f"{best['accepted']:.2f} tokens from an anchor, the layers given {shifts['0']['accepted']:.2f}; set "
            f"{written['field']}, which counts {written['counts']}s, to {inputs if written['counts'] == 'input' else outputs}"
        )
    if math.isclose(acceptance, 1.0):
        warnings.append(
            "acceptance is exactly 1: no drafted token was accepted; check that the drafter was trained for this target, and "
            "its mask token, causality and feature layers"
        )
    return warnings
