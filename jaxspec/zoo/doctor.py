"""Diagnose a drafter with its target by a short decode, also with shifted feature layers.

A drafter that reads the wrong layers or was trained with another tokenizer does not change the
output: verification hides the mistake, and decoding is merely slow. So the doctor measures
acceptance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxspec.api.decode import decode
from jaxspec.call.options import Sampling, Speculation
from jaxspec.call.text.token_ids import to_ids
from jaxspec.core.params import Params
from jaxspec.drafters.files import find_config
from jaxspec.drafters.registry import record_of
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.zoo.checkpoint import load
from jaxspec.zoo.compare_files import compare_borrowed, compare_records
from jaxspec.zoo.drafters import fit_drafter
from jaxspec.zoo.environment import render_environment, report_environment
from jaxspec.zoo.inspect import describe_checkpoint
from jaxspec.zoo.places import resolve_drafter, resolve_model
from jaxspec.zoo.probe import gain, measure_fit

PROMPTS = (
    "Question: A shop sells pens at 3 dollars each. How much do 7 pens cost?\nAnswer:",
    "def read_lines(path):\n",
    "It was a cold morning, and the streets were",
    "The three most important things to know about planets are",
    "Question: Tom has 12 apples and gives 5 to Ann. He then buys 8 more. How many apples does "
    "Tom have?\nAnswer:",
    "class Stack:\n    def __init__(self):\n",
    "The old house stood at the end of the lane, and",
    "import os\n\ndef main():\n",
)
# Another convention is called the right one if it fits better by this many standard errors.
_SURE = 3.0
_NAME = "drafter"


def diagnose(
    model, drafter, *, prompts=None, max_new_tokens: int = 32, dtype: str | None = None
) -> dict[str, Any]:
    """Check a pair of target and drafter.

    Args:
      model: see `jaxspec.load`.
      drafter: one drafter, see `jaxspec.load`.
      prompts: a list of prompts for `jaxspec.decode` (default: `PROMPTS`; for a target without a
        tokenizer, random token ids, which say little about a drafter).
      max_new_tokens: number of tokens to decode per prompt, greedily and as a chain.
      dtype: see `jaxspec.load`.

    Returns:
      JSON values:
        `acceptance`: mean acceptance length of the decode, bonus included; None if nothing could be
          decoded.
        `feature_layers`: outputs, 0-based.
        `shifts`: for "0", "-1" and "1", the fit with the layers shifted, over all anchors of the
          texts: `accepted` (mean acceptance length, bonus included), `logprob`, and `gain` (see
          `jaxspec.zoo.probe`).
        `warnings`: causes of lost acceptance, one sentence each.
        `notes`: one sentence each.
        `environment`: see `report_environment`.
        `drafter`: see `jaxspec.zoo.inspect.describe_checkpoint`.

    Raises:
      FileNotFoundError: the model or the drafter does not exist.
      ValueError: either cannot be read, there is no prompt, or max_new_tokens is below 2.
    """
    if max_new_tokens < 2:
        raise ValueError(
            f"max_new_tokens is {max_new_tokens}: the prefill draws the first token, so give at "
            "least 2"
        )
    if prompts is not None and not prompts:
        raise ValueError("no prompts: give at least one, or none at all for the built-in ones")
    target = resolve_model(model)
    directory = resolve_drafter(drafter, model, target)
    hf = read_entries(directory / "config.json")
    config = find_config(directory)
    warnings, notes = compare_records(target, directory, hf)
    result = {"feature_layers": list(config.feature_layers), "acceptance": None, "shifts": {}}
    result |= {
        "warnings": warnings,
        "notes": notes,
        "environment": report_environment(),
        "drafter": describe_checkpoint(directory),
    }
    written = result["drafter"]["feature_layers"]
    warnings += [f"feature layers: {written['note']}"] if written["contradicted"] else []
    try:
        fit_drafter(config, directory, target_config(read_entries(target / "config.json")), target)
    except ValueError as error:
        warnings.append(str(error))
        return result
    warnings += compare_borrowed(target, directory, hf)
    params = load(model, drafter={_NAME: str(directory)}, dtype=dtype)
    if prompts is None and not params.spec.tokenizer:
        notes.append(
            "the target has no tokenizer, so the prompts are random token ids: give prompts of its "
            "domain"
        )
        prompts = _token_prompts(params.spec.target.vocab_size)
    result["acceptance"], result["shifts"] = _probe(
        params, list(prompts or PROMPTS), max_new_tokens
    )
    warnings += _verdict(config, result["acceptance"], result["shifts"], written)
    return result


def render_diagnosis(result: dict[str, Any]) -> str:
    """Format the diagnosis as lines of text."""
    lines = [
        render_environment(result["environment"]),
        "",
        f"drafter: {result['drafter']['family']}, feature layers {result['feature_layers']} "
        "(outputs, 0-based)",
    ]
    lines += [f"note: {note}" for note in result["notes"]]
    if result["acceptance"] is not None:
        lines.append(
            f"acceptance length: {result['acceptance']:.2f} tokens per round, bonus included "
            "(greedy chains)"
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


def _probe(
    params: Params, prompts: list, max_new_tokens: int
) -> tuple[float, dict[str, dict[str, float]]]:
    """Measure the mean acceptance length of greedy chains and how well the feature layers fit.

    Returns:
      The acceptance length, and the fit of the layers as given, one lower and one higher.
    """
    config = params.spec.drafter(_NAME)
    ids = [to_ids(prompt, params.tokenizer, params.spec.target) for prompt in prompts]
    outputs = decode(
        params,
        [list(map(int, prompt)) for prompt in ids],
        max_new_tokens=max_new_tokens,
        drafter=_NAME,
        sampling=Sampling(ignore_eos=True),
        speculation=Speculation(builder="chain", budget=1 + config.depth),
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
        if shift == "0" or (min(layers) >= 0 and max(layers) < params.spec.target.num_layers)
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
    """Turn the figures into warnings; `written` is how config.json lists the layers."""
    warnings = []
    shift, best = max(shifts.items(), key=lambda item: item[1]["gain"], default=("0", None))
    if best and best["gain"] > _SURE and best["accepted"] > shifts["0"]["accepted"]:
        outputs = [layer + int(shift) for layer in config.feature_layers]
        inputs = [layer + 1 for layer in outputs]
        warnings.append(
            f"another convention accepts more: outputs of layers {outputs} (0-based; inputs of "
            f"{inputs}) {best['accepted']:.2f} tokens from an anchor, the layers given "
            f"{shifts['0']['accepted']:.2f}; set {written['field']}, which counts "
            f"{written['counts']}s, to "
            f"{inputs if written['counts'] == 'input' else outputs}"
        )
    if math.isclose(acceptance, 1.0):
        warnings.append(
            "acceptance is exactly 1: no drafted token was accepted; check that the drafter was "
            "trained for this target, and its mask token, causality and feature layers"
        )
    return warnings
