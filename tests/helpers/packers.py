"""Write weights in few bits as other projects do, number by number, and say what they stand for.

Nothing here uses the readers' code: words are Python integers, and floats are computed from the
formats' definitions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from golden_data import SHIPPED
from safetensors.numpy import save_file

from jaxspec.io.files.safetensors_files import WeightFiles

MODELS = SHIPPED / "targets"
FP8 = ml_dtypes.float8_e4m3fn
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
# (stored tensors by suffix, the weight that they stand for)
Packed = tuple[dict[str, np.ndarray], np.ndarray]


def stream(numbers, bits: int) -> np.ndarray:
    """Write integers one after the other into one large one, and cut it into int32 words."""
    whole = sum(int(number) << i * bits for i, number in enumerate(numbers))
    count = -(-len(numbers) * bits // 32)
    return np.array([whole >> 32 * i & 0xFFFFFFFF for i in range(count)], np.uint32).view(np.int32)


def spread(array: np.ndarray, sizes: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    """Repeat entries for blocks of the given sizes."""
    rows, columns = np.indices(shape)
    return array[rows // sizes[0], columns // sizes[1]]


def fp8_blocks(weight: np.ndarray, block: tuple[int, int] = (16, 24)) -> Packed:
    """DeepSeek's FP8, with a bfloat16 scale for each block."""
    outputs, inputs = weight.shape
    scale = np.empty((-(-outputs // block[0]), -(-inputs // block[1])), np.float32)
    for i, j in np.ndindex(scale.shape):
        part = weight[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        scale[i, j] = np.abs(part).max() / 448
    scale = scale.astype(ml_dtypes.bfloat16)
    factor = spread(scale.astype(np.float32), block, weight.shape)
    values = np.clip(weight / factor, -448, 448).astype(FP8)
    return {"weight": values, "weight_scale_inv": scale}, values.astype(np.float32) * factor


def one_byte(weight: np.ndarray, kind: str, whole: bool = False, zeros: bool = False) -> Packed:
    """compressed-tensors' int8 or fp8 with a scale for each output, or one."""
    largest = {"int8": 127, "fp8": 448}[kind]
    peak = np.abs(weight).max(None if whole else 1, keepdims=True)
    scale = (peak / largest).astype(np.float32).reshape((1,) if whole else (-1, 1))
    zero = np.arange(len(weight), dtype=np.int8)[:, None] % 3 - 1 if zeros else 0
    steps = weight / scale + zero
    values = np.clip(np.rint(steps), -128, 127).astype(np.int8) if kind == "int8" else steps
    values = values if kind == "int8" else np.clip(steps, -448, 448).astype(FP8)
    stored = {"weight": values, "weight_scale": scale}
    stored |= {"weight_zero_point": zero} if zeros else {}
    return stored, (values.astype(np.float32) - np.float32(zero)) * scale


def group_codes(weight: np.ndarray, bits: int, size: int, symmetric: bool, order=None):
    """Quantise groups of inputs to unsigned codes; return codes, zeros, scales [groups, out]."""
    outputs, inputs = weight.shape
    order = np.arange(inputs) // size if order is None else order
    groups, most = order.max() + 1, 2**bits - 1
    scale, zero = np.empty((groups, outputs), np.float16), np.empty((groups, outputs), int)
    for g in range(groups):
        part = weight[:, order == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        reach = 2 * np.maximum(-low, high) if symmetric else high - low
        scale[g] = reach / most
        zero[g] = 2 ** (bits - 1) if symmetric else np.rint(-low / scale[g].astype(np.float32))
    factor, point = scale[order].T.astype(np.float32), zero[order].T
    codes = np.clip(np.rint(weight / factor) + point, 0, most).astype(int)
    return codes, zero, scale, (codes - point).astype(np.float32) * factor


def awq(weight: np.ndarray, size: int = 16) -> Packed:
    """AutoAWQ's gemm layout."""
    codes, zero, scale, full = group_codes(weight, 4, size, symmetric=False)

    def words(rows: np.ndarray) -> np.ndarray:
        eights = rows.reshape(len(rows), -1, 8)
        return np.array([[stream(one[list(AWQ_ORDER)], 4)[0] for one in row] for row in eights])

    return {"qweight": words(codes.T), "qzeros": words(zero), "scales": scale}, full


def gptq(
    weight: np.ndarray,
    bits: int = 4,
    size: int = 16,
    symmetric: bool = True,
    order: np.ndarray | None = None,
    offset: int = 1,
    indexed: bool = True,
) -> Packed:
    """AutoGPTQ's layout; `offset` 0 is that of `gptq_v2`."""
    codes, zero, scale, full = group_codes(weight, bits, size, symmetric, order)
    stored = {
        "qweight": np.stack([stream(row, bits) for row in codes], axis=1),
        "qzeros": np.stack([stream((row - offset) % 2**bits, bits) for row in zero]),
        "scales": scale,
    }
    plain = np.arange(weight.shape[1]) // size
    index = (plain if order is None else order).astype(np.int32)
    return stored | ({"g_idx": index} if indexed else {}), full


def packed(weight: np.ndarray, bits: int, size: int | None, symmetric: bool = True) -> Packed:
    """compressed-tensors' pack-quantized; `size` None: a scale for each output."""
    outputs, inputs = weight.shape
    codes, zero, scale, full = group_codes(weight, bits, size or inputs, symmetric)
    stored = {
        "weight_packed": np.stack([stream(row, bits) for row in codes]),
        "weight_scale": scale.T.astype(ml_dtypes.bfloat16),
        "weight_shape": np.array([outputs, inputs]),
    }
    if not symmetric:
        stored["weight_zero_point"] = np.stack([stream(row, bits) for row in zero], axis=1)
    factor = spread(stored["weight_scale"].astype(np.float32), (1, size or inputs), weight.shape)
    point = spread(zero.T, (1, size or inputs), weight.shape)
    return stored, (codes - point).astype(np.float32) * factor


def nvfp4(weight: np.ndarray, size: int = 16) -> Packed:
    """compressed-tensors' nvfp4-pack-quantized: FP8 scales of groups, and one of them all."""
    parts = weight.reshape(len(weight), -1, size)
    whole = np.array([448 * 6 / np.abs(weight).max()], np.float32)
    scale = (np.abs(parts).max(-1) / 6 * whole).astype(FP8)
    factor = scale.astype(np.float32) / whole
    steps = parts / np.where(factor > 0, factor, 1)[..., None]
    codes = np.abs(steps[..., None] - np.array(FP4)).argmin(-1).reshape(weight.shape)
    stored = {
        "weight_packed": (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8),
        "weight_scale": scale,
        "weight_global_scale": whole,
    }
    full = np.array(FP4, np.float32)[codes] * spread(factor, (1, size), weight.shape)
    return stored, full


def mxfp4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """OCP's MXFP4 of rows [..., 32 G]: blocks, scales, and the numbers."""
    flat = weight.reshape(-1, 32)
    exponent = np.floor(np.log2(np.abs(flat).max(1))).astype(int) - 2
    steps = flat / 2.0 ** exponent[:, None]
    codes = np.abs(steps[..., None] - np.array(FP4)).argmin(-1)
    blocks = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    full = np.array(FP4)[codes] * 2.0 ** exponent[:, None]
    lead = (*weight.shape[:-1], weight.shape[-1] // 32)
    scales = (exponent + 127).astype(np.uint8).reshape(lead)
    return blocks.reshape(*lead, 16), scales, full.reshape(weight.shape).astype(np.float32)


def write_model(
    name: str | Path,
    folder: Path,
    pack: Callable[[str, np.ndarray], Packed | None],
    settings: dict,
    entry: str = "quantization_config",
    extra: dict[str, np.ndarray] | None = None,
    shards: int = 1,
) -> dict[str, np.ndarray]:
    """Write a golden model with its projections packed.

    Args:
      name: of the model, or its folder.
      folder: where to.
      pack: (name of the module, weight) -> tensors by suffix and what they stand for; None: as is.
      settings: of config.json.
      entry: their name there.
      extra: further tensors.
      shards: number of files.

    Returns:
      The full weights by name.
    """
    read, stored, full = WeightFiles(MODELS / name), dict(extra or {}), {}
    for tensor in read:
        weight, module = np.asarray(read[tensor], np.float32), tensor.removesuffix(".weight")
        made = pack(module, weight) if is_projection(tensor) else None
        full[tensor] = weight if made is None else made[1]
        stored |= (
            {tensor: weight}
            if made is None
            else {f"{module}.{suffix}": array for suffix, array in made[0].items()}
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in (MODELS / name).glob("*.json"):
        shutil.copyfile(path, folder / path.name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {entry: settings}))
    save_shards(stored, folder, shards)
    return full


def is_projection(tensor: str) -> bool:
    """Whether a tensor is a matrix that quantisers take."""
    matrix = tensor.endswith("_proj.weight") or tensor == "lm_head.weight"
    return matrix and "layernorm" not in tensor


def save_shards(stored: dict[str, np.ndarray], folder: Path, shards: int) -> None:
    """Write tensors to files, those of a module to different ones."""
    stored = {name: np.ascontiguousarray(array) for name, array in stored.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        return
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    home = {name: files[i % shards] for i, name in enumerate(sorted(stored))}
    for file in files:
        own = {name: array for name, array in stored.items() if home[name] == file}
        save_file(own, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
