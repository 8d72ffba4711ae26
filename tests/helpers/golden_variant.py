"""Another golden set, made from the shipped one: other layers, heads, widths and counts, the same
references.

    python tests/helpers/golden_variant.py DIR        # then: make test-golden JAXSPEC_GOLDEN=DIR

The targets of the block drafters, of GRIFFIN and of TreeFlash get a layer that adds nothing, a
key-value head of zeros with its queries, and unused feed-forward rows. None of these changes an
output, so the authors' references stay true; recorded caches get the zeros of the new head. Records
are thinned out, and every method has its target in a folder of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

WIDER = 32  # further rows of the feed-forward layers
_SHARED = ("eagle3", "medusa", "specblock")  # methods of the target in tiny_llama
_THINNED = (
    "dflash/decode.json",
    "ddtree/decode.json",
    "jetspec/decode.json",
    "jetspec/accept.json",
    "griffin/trees.json",
    "treeflash/decode.json",
)


def make_variant(out: Path) -> Path:
    """Write the set to the folder `out`, which must not exist; returns it."""
    shutil.copytree(SHIPPED, out)
    for method in ("dflash", "jetspec"):
        widen_target(out / method / "target")
        layers = out / method / "drafter" / "config.json"
        hf = json.loads(layers.read_text())
        layers.write_text(json.dumps(hf | {"num_target_layers": hf["num_target_layers"] + 1}))
    widen_target(out / "griffin" / "target")
    widen_target(out / "treeflash" / "target")
    widen_arrays(out / "ddtree" / "round.npz")
    for method in _SHARED:
        shutil.copytree(out / "tiny_llama", out / method / "target")
    shutil.rmtree(out / "tiny_llama")
    for name in _THINNED:
        records = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps(records[::3]))
    return out


def widen_target(folder: Path) -> None:
    """Add a layer that adds nothing, a key-value head and feed-forward rows, all of zeros."""
    path, config = folder / "model.safetensors", folder / "config.json"
    hf, tensors = json.loads(config.read_text()), load_file(path)
    group = hf["num_attention_heads"] // hf["num_key_value_heads"]
    count = hf["num_hidden_layers"]
    dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    for name, tensor in list(tensors.items()):
        if name.startswith("model.layers.0."):
            silent = np.ones_like(tensor) if "norm" in name else np.zeros_like(tensor)
            tensors[name.replace("layers.0.", f"layers.{count}.")] = silent
    more = {
        "q_proj": (0, group * dim),
        "k_proj": (0, dim),
        "v_proj": (0, dim),
        "o_proj": (1, group * dim),
        "gate_proj": (0, WIDER),
        "up_proj": (0, WIDER),
        "down_proj": (1, WIDER),
    }
    for name, tensor in tensors.items():
        axis, size = more.get(name.split(".")[-2], (0, 0))
        width = [(0, 0)] * tensor.ndim
        width[axis] = (0, size)
        tensors[name] = np.ascontiguousarray(np.pad(tensor, width))
    save_file(tensors, path, metadata={"format": "pt"})
    hf |= {
        "num_hidden_layers": count + 1,
        "head_dim": dim,
        "num_attention_heads": hf["num_attention_heads"] + group,
        "num_key_value_heads": hf["num_key_value_heads"] + 1,
        "intermediate_size": hf["intermediate_size"] + WIDER,
        "layer_types": ["full_attention"] * (count + 1),
    }
    config.write_text(json.dumps(hf))


def widen_arrays(path: Path) -> None:
    """Caches [1, heads, rows, dim] of the target with the new head, and those of the new layer."""
    arrays = dict(np.load(path))
    caches = [name for name in arrays if "_cache_" in name]
    for name in caches:
        arrays[name] = np.pad(arrays[name], ((0, 0), (0, 1), (0, 0), (0, 0)))
    for prefix in {name.rstrip("0123456789") for name in caches}:
        layers = sum(name.startswith(prefix) for name in caches)
        arrays[f"{prefix}{layers}"] = np.zeros_like(arrays[f"{prefix}0"])
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    print(make_variant(Path(sys.argv[1])))
