"""The drafters of a load: find their files, read them, and fit them to the target.

The target's embedding table may have another number of rows. Published models pad their tables,
each size of a family otherwise: Qwen2.5 has 151936 rows at 0.5B and 152064 at 7B, for one
tokenizer. No text uses the rows beyond its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import WEIGHTLESS
from jaxspec.drafters import files
from jaxspec.drafters.files import find_config, for_target, pad_vocabulary
from jaxspec.drafters.registry import record_of
from jaxspec.io.hub import shipped
from jaxspec.io.text.tokenizer import Tokenizer, load_tokenizer
from jaxspec.io.weights.provenance import read_training_cost
from jaxspec.zoo.places import find_drafters, resolve_drafter, resolve_model

# Rows beyond its tokenizer's tokens that a table may have. Without the drafter's own tokenizer,
# more of them mean another vocabulary.
_PADDING = 1024


def find_sources(name: Any, model: Path, drafter: Any) -> dict[str, Path]:
    """Return {name: directory} of the given drafters; one without a name is called by its kind."""
    folder = find_drafters(name, model)
    own = shipped(folder)
    if drafter is None:
        return {label: folder / label for label in own}
    if isinstance(drafter, str) and drafter in ("ar", *WEIGHTLESS):  # without files, always there
        return {}
    if not isinstance(drafter, dict):
        named = drafter in own
        found = None if named else find_config(resolve_drafter(drafter, name, model))
        drafter = {drafter if named else record_of(found).name: drafter}
    if "ar" in drafter:
        raise ValueError(
            "a drafter cannot be called 'ar': that name is autoregressive decoding; choose another"
        )
    return {label: resolve_drafter(source, name, model) for label, source in drafter.items()}


def read_configs(sources: Mapping[str, Path], target: TargetConfig, model: Path) -> dict[str, Any]:
    """Read the configs of drafters, fitted to the target, see `fit_drafter`."""
    return {
        label: fit_drafter(find_config(source), source, target, model)
        for label, source in sources.items()
    }


def load_drafters(
    sources: Mapping[str, Path],
    configs: Mapping[str, Any],
    target: Any,
    target_config: TargetConfig,
    dtype: str,
) -> dict[str, Any]:
    """Load the weights of drafters, with what they take from the target: {name: variables}."""
    return {
        label: files.lend(
            files.load_drafter(source, configs[label], dtype),
            configs[label],
            target,
            target_config,
            source,
        )
        for label, source in sources.items()
    }


def rank_drafters(configs: dict[str, Any], order: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Order drafters: those recorded as best for the model, then by the preference of their kind."""

    def rank(item: tuple[str, Any]) -> tuple[int, int]:
        name, config = item
        recorded = order.index(name) if name in order else len(order)
        return recorded, record_of(config).preference

    return tuple(sorted(configs.items(), key=rank))


def training_costs(name, *, drafter=None) -> dict[str, dict[str, float]]:
    """Return the cost of training of each drafter that `load` would load.

    Drafters are left out if their files do not record it. See `jaxspec.io.weights.provenance`.

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
    return find_sources(name, resolve_model(name), drafter)


def fit_drafter(config: Any, source: Path, target: TargetConfig, model: Path) -> Any:
    """Complete a drafter's config from its target.

    Args:
      config: what the drafter's config.json says.
      source: folder of the drafter.
      target: config of the target.
      model: folder of the target.

    Raises:
      ValueError: the drafter does not fit the target, or has another tokenizer.
    """
    stored = config.vocab_size
    if (
        stored
        and stored != target.vocab_size
        and _differs_by_padding(source, model, stored, target)
    ):
        config = pad_vocabulary(config, target.vocab_size)
    return for_target(config, target)


def _differs_by_padding(source: Path, model: Path, stored: int, target: TargetConfig) -> bool:
    """Whether two tables hold the same tokens.

    Args:
      stored: rows of the drafter's table.

    Raises:
      ValueError: both have a tokenizer, and the two differ.
    """
    tokenizer, own = load_tokenizer(str(model)), load_tokenizer(str(source))
    if tokenizer is None:
        return False
    if own is not None:
        _check_same(own, tokenizer)
        return True
    tokens = min(len(tokenizer), target.vocab_size)
    return tokens <= stored <= tokens + _PADDING


def _check_same(own: Tokenizer, tokenizer: Tokenizer) -> None:
    """Raise a ValueError if two tokenizers disagree about a token; either may have more of them."""
    ours, theirs = own.list_ordinary(), tokenizer.list_ordinary()
    differ = sorted(i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i])
    if differ:
        first = differ[0]
        raise ValueError(
            "the drafter does not fit the target: its tokenizer is another one, token "
            f"{first} is {ours[first]!r} and not {theirs[first]!r}; use a drafter with the "
            "target's tokenizer"
        )
