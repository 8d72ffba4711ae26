"""Recorded hub repositories: their config.json, and names, shapes and stored dtypes of all tensors.

`write_headers` makes a repository of their real sizes without data, `write_small` one of few layers
and narrow widths with random weights, under the same names and in the same formats.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from golden_data import SHIPPED
from safetensors.numpy import save_file
from torch_zip import write_torch_zip

FOLDER = SHIPPED / "repositories"
DTYPES = {
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "I32": np.int32, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_RANGES = re.compile(r"\{([\d,.]+)\}")


class Tensor(NamedTuple):
    """A stored tensor: its dtype as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Repository(NamedTuple):
    """A repository.

    Attributes:
      name: on the hub.
      target: file of the target that a drafter is for; None: it is a target.
      source: where its facts come from.
      size: bytes of all tensors, as the published index says; None: unknown.
      config: config.json.
      tensors: by name.
    """

    name: str
    target: str | None
    source: str
    size: int | None
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def list_recorded() -> list[str]:
    """List the names of all records."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_repository(name: str) -> Repository:
    """Read a record."""
    found = json.loads((FOLDER / f"{name}.json").read_text())
    tensors = {
        each: _parse(text) for names, text in found["tensors"].items() for each in unfold(names)
    }
    return Repository(*(found.get(field) for field in Repository._fields[:-1]), tensors)


def write_repository(name: str, repository: Repository) -> None:
    """Write a record, with names of repeated layers and experts folded."""
    entries = repository._asdict() | {"tensors": fold(repository.tensors)}
    text = json.dumps({k: v for k, v in entries.items() if v is not None}, indent=1)
    short = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    (FOLDER / f"{name}.json").write_text(short + "\n")


def _parse(text: str) -> Tensor:
    dtype, *sizes = text.split()
    return Tensor(dtype, tuple(int(size) for one in sizes for size in one.split("x")))


def fold(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Fold names that differ in numbers, `layers.{0..35}.`, if the tensors are alike."""
    groups: dict[tuple, list[tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        key = ".".join("{}" if part.isdigit() else part for part in parts), tensor
        groups.setdefault(key, []).append(tuple(int(part) for part in parts if part.isdigit()))
    folded = {}
    for (pattern, (dtype, shape)), found in groups.items():
        text = " ".join([dtype, "x".join(map(str, shape))]).strip()
        axes = [sorted(set(axis)) for axis in zip(*found, strict=True)]
        assert math.prod(map(len, axes)) == len(found), f"{pattern}: not a product of ranges"
        folded[pattern.format(*map(_write_range, axes))] = text
    return folded


def _write_range(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    texts = [f"{run[0]}..{run[-1]}" if run[1:] else str(run[0]) for run in runs]
    return "{" + ",".join(texts) + "}"


def unfold(names: str) -> list[str]:
    """List the names that a folded one stands for."""
    pieces = _RANGES.split(names)
    axes = [
        [text] if i % 2 == 0 else list(map(str, _read_range(text))) for i, text in enumerate(pieces)
    ]
    return ["".join(each) for each in itertools.product(*axes)]


def _read_range(text: str) -> Iterable[int]:
    for run in text.split(","):
        first, _, last = run.partition("..")
        yield from range(int(first), int(last or first) + 1)


def count_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor."""
    return np.dtype(DTYPES[tensor.dtype]).itemsize * math.prod(tensor.shape)


def write_headers(repository: Repository, folder: Path) -> None:
    """Write config.json and one file that is as large as the repository's, but mostly a hole.

    Small tables of integers, which readers look at, are there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(repository.config))
    header, end = {}, 0
    tables: dict[int, np.ndarray] = {}
    for name, tensor in repository.tensors.items():
        start, end = end, end + count_bytes(tensor)
        header[name] = tensor._asdict() | {"data_offsets": [start, end]}
        if (table := make_table(name, repository.tensors)) is not None:
            tables[start] = table
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = file.tell()
        file.truncate(begin + end)
        for start, table in tables.items():
            file.seek(begin + start)
            file.write(table.tobytes())


def make_table(name: str, tensors: Mapping[str, Tensor]) -> np.ndarray | None:
    """Make a tensor whose values follow from shapes; None: it is not one."""
    stem, _, kind = name.rpartition(".")
    shape = tensors[name].shape
    if kind == "weight_shape":
        rows, groups = tensors[f"{stem}.weight_scale"].shape
        words = tensors[f"{stem}.weight_packed"].shape[1]
        return np.array([rows, 8 * words]) if groups else None
    if kind == "g_idx":
        groups = tensors[f"{stem}.scales"].shape[0]
        return (np.arange(shape[0]) * groups // shape[0]).astype(np.int32)
    if name in ("d2t", "t2d"):
        drafted = np.sort(
            np.random.default_rng(0).choice(
                tensors["t2d"].shape[0], tensors["d2t"].shape[0], replace=False
            )
        )
        marks = np.zeros(tensors["t2d"].shape, np.bool_)
        marks[drafted] = True
        return drafted - np.arange(len(drafted)) if name == "d2t" else marks
    return None


def draw_tensors(repository: Repository, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random weights in the stored dtypes, of a size at which logits differ."""
    random = np.random.default_rng(seed)
    drawn = {
        name: _draw(name, tensor, repository, random) for name, tensor in repository.tensors.items()
    }
    if repository.config.get("tie_word_embeddings") and "lm_head.weight" in drawn:
        drawn["lm_head.weight"] = drawn["model.embed_tokens.weight"]
    return drawn


def _draw(
    name: str, tensor: Tensor, repository: Repository, random: np.random.Generator
) -> np.ndarray:
    dtype, shape = tensor
    if (table := make_table(name, repository.tensors)) is not None:
        return table
    if dtype == "I32":  # codes in words
        if name.endswith(".qzeros") and "gptq" in json.dumps(repository.config):
            return np.full(shape, 0x77777777, np.int32)
        return random.integers(-(2**31), 2**31, shape).astype(np.int32)
    if dtype == "U8":  # MXFP4
        exponents = name.endswith("_scales")
        return random.integers(*((121, 124) if exponents else (0, 256)), shape).astype(np.uint8)
    centred = "gemma3" in json.dumps(repository.config)
    if dtype == "F8_E4M3":
        values = 64 * random.normal(size=shape)
    elif "scale" in name:  # of codes whose values are about 4, or of float8 about 64
        values = random.uniform(0.5, 1.5, shape) * (
            0.002 if _is_one_byte(name, repository) else 0.02
        )
    elif "norm" in name and len(shape) == 1:
        values = (not centred) + 0.2 * random.normal(size=shape)
    elif len(shape) == 1 or not shape:
        # Writers of GPTQ add biases of zeros.
        idle = name.endswith(".bias") and re.search(r"(o|gate|up|down)_proj\.bias$", name)
        values = np.zeros(shape) if idle and "gptq" in json.dumps(repository.config) else None
        values = 0.2 * random.normal(size=shape) if values is None else values
    else:
        values = random.normal(size=shape) * shape[-1] ** -0.5
    return np.asarray(values).astype(DTYPES[dtype])


def _is_one_byte(name: str, repository: Repository) -> bool:
    weight = repository.tensors.get(name.rpartition(".")[0] + ".weight")
    return weight is not None and weight.dtype == "F8_E4M3"


def write_small(repository: Repository, folder: Path, seed: int = 0) -> None:
    """Write a repository with random weights, in the kind of file that it is published in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(repository.config))
    tensors = draw_tensors(repository, seed)
    stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    if "pytorch_model.bin" in repository.source:
        write_torch_zip(folder / "pytorch_model.bin", stored)
    else:
        save_file(stored, folder / "model.safetensors", {"format": "pt"})


# Sizes in config.json that are widths, and those that name token ids or rows of tables.
_WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim")
_WIDTHS += ("query_pre_attn_scalar", "target_hidden_size", "markov_rank")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
VOCABULARY, DRAFT, EXPERTS, WINDOW = 160, 96, 8, 9
# Parts of shapes that count groups or blocks stay as they are, since the groups shrink instead.
_COUNTS = {
    "qzeros": (0,),
    "scales": (0,),
    "weight_scale": (1,),
    "weight_scale_inv": (0, 1),
    "weight_shape": (0,),
}


def shrink(
    repository: Repository,
    layers: int,
    *,
    divide: int = 16,
    widths: Mapping[int, int] | None = None,
    target_layers: int = 8,
) -> Repository:
    """Return a repository with few layers, narrow widths, few experts and tokens.

    Args:
      layers: kept; those behind the last, of a head that predicts several tokens, keep their place
        behind them.
      divide: by how much widths are divided.
      widths: instead of `divide`, every width and what it becomes.
      target_layers: of the target, for a drafter.
    """
    text = repository.config.get("text_config") or repository.config
    text = repository.config.get("transformer_layer_config") or text
    count = text["num_hidden_layers"]
    narrow = (lambda size: widths[size]) if widths else (lambda size: size // divide)

    def small(name: str, tensor: Tensor) -> Tensor:
        kind, shape = name.rpartition(".")[2], list(tensor.shape)
        embeds = re.search(r"(embed_tokens|lm_head|markov_w\d)\.|^d2t$|^t2d$", name)
        keep = set(_COUNTS.get(kind, ()))
        if kind.endswith(("_blocks", "_scales")):
            keep |= set(range(len(shape))) - {0, 1} if kind.endswith("_scales") else {3}
            shape[2] = widths[shape[2]] if widths else shape[2]
        for axis, size in enumerate(shape):
            if embeds and axis == 0:
                shape[0] = DRAFT if name == "d2t" or _is_drafted(repository, size) else VOCABULARY
            elif axis == 0 and re.search(r"(mlp\.gate|router)\.|mlp\.experts\.[a-z]", name):
                shape[0] = EXPERTS
            elif (
                kind != "sinks"
                and size > 1
                and axis not in keep
                and not (kind.endswith(("_blocks", "_scales")) and axis == 2)
            ):
                shape[axis] = narrow(size)
        return Tensor(tensor.dtype, tuple(shape))

    tensors = {}
    for name, tensor in repository.tensors.items():
        if not _is_text(name):
            continue
        kept = _renumber(name, layers, count)
        if kept is not None:
            tensors[kept] = small(name, tensor)
    config = _shrink_config(repository.config, layers, narrow, target_layers)
    return repository._replace(config=config, tensors=tensors, size=None)


def _is_drafted(repository: Repository, rows: int) -> bool:
    return rows == repository.config.get("draft_vocab_size") and "d2t" in repository.tensors


def _is_text(name: str) -> bool:
    return not re.search(r"vision|multi_modal", name)


def _renumber(name: str, layers: int, count: int) -> str | None:
    """Return the name in the small repository; None: it is left out."""
    expert = re.search(r"experts\.(\d+)\.", name)
    if expert and int(expert[1]) >= EXPERTS:
        return None
    layer = re.search(r"\blayers\.(\d+)\.", name)
    if layer is None or int(layer[1]) < layers:
        return name
    if int(layer[1]) < count:
        return None
    start, end = layer.span(1)
    return f"{name[:start]}{int(layer[1]) - count + layers}{name[end:]}"


# Sizes that a config.json may leave to the class, by type of the model.
_UNSTATED = {
    "gemma3_text": {"vocab_size": 262208, "head_dim": 256, "query_pre_attn_scalar": 256},
}


def _shrink_config(hf: Any, layers: int, narrow: Any, target_layers: int) -> Any:
    """Shrink the entries of a config.json, at all depths but that of other models."""
    hf = _UNSTATED.get(hf.get("model_type"), {}) | hf
    found = dict(hf)
    for name, value in hf.items():
        if name == "vision_config":
            continue
        if name in _WIDTHS and value:
            found[name] = narrow(value)
        elif name in _EXPERTS:
            found[name] = EXPERTS
        elif name in ("num_experts_per_tok", "experts_per_token"):
            found[name] = min(value, 3)
        elif name == "num_hidden_layers":
            found[name] = layers
        elif name == "num_target_layers":
            found[name] = target_layers
        elif name == "sliding_window" and value:
            found[name] = WINDOW
        elif name == "max_window_layers":
            found[name] = layers
        elif name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            found[name] = value[:layers]
        elif name in ("short_factor", "long_factor"):
            found[name] = value[: narrow(16 * len(value)) // 16]
        elif name == "vocab_size":
            found[name] = VOCABULARY
        elif name in ("draft_vocab_size", "truncated_vocab_size"):
            found[name] = DRAFT
        elif name in ("mask_token_id", "pard_token"):
            found[name] = VOCABULARY - 1
        elif name.endswith(("_token_id", "_token_index")):
            found[name] = 0
        elif name == "group_size" and value:
            found[name] = narrow(value)
        elif name == "weight_block_size" and value:
            found[name] = [narrow(size) for size in value]
        elif name in ("target_layer_ids", "eagle_aux_hidden_state_layer_ids") and value:
            found[name] = list(range(1, 1 + len(value)))
        elif isinstance(value, dict):
            found[name] = _shrink_config(value, layers, narrow, target_layers)
    return found
