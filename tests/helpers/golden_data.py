"""Where the golden data is: results of the authors' own code on tiny random models.

`JAXSPEC_GOLDEN` names another set of the same form, of any sizes, layers, counts and token ids
(`make test-golden`). Tests that read references take their root from here and their sizes from the
set. Tests that need some tiny model alone use `SHIPPED`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SHIPPED = Path(__file__).resolve().parents[1] / "golden"
ROOT = Path(os.environ.get("JAXSPEC_GOLDEN") or SHIPPED).resolve()


def golden(*parts: str) -> Path:
    """A file or folder of the set; skips the test, or the whole module, if the set lacks it."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        if ROOT == SHIPPED:
            raise FileNotFoundError(path)
        pytest.skip(f"{ROOT} has no {'/'.join(parts)}", allow_module_level=True)
    return path


def target_of(method: str) -> Path:
    """The target's folder of a method: its own, or the one that methods share."""
    own = ROOT / method / "target"
    return own if own.is_dir() else golden("tiny_llama")


def arrays(*parts: str) -> dict[str, np.ndarray]:
    """All arrays of an .npz file."""
    with np.load(golden(*parts)) as file:
        return dict(file)


def records(*parts: str) -> Any:
    """What a JSON file holds."""
    return json.loads(golden(*parts).read_text())


def numbers(names: Any, before: str, after: str = "") -> list[int]:
    """Numbers between `before` and `after` in those of `names` that have them, ascending."""
    found = {
        name[len(before) :].partition(after)[0] if after else name[len(before) :]
        for name in names
        if name.startswith(before) and after in name
    }
    return sorted(int(one) for one in found if one.isdigit())


def load_eagle(target_folder: Path, folder: Path) -> Any:
    """A target with the EAGLE-3 drafter in `folder`, whose layers follow from the target's."""
    import dataclasses

    import jaxspec
    from jaxspec.core.params import Params
    from jaxspec.drafters.eagle3.files import read
    from jaxspec.drafters.eagle3.hf_config import config_from_hf, for_target
    from jaxspec.io.weights.config_entries import read_entries

    target = jaxspec.load(target_folder, dtype="float32")
    config = for_target(config_from_hf(read_entries(folder / "config.json")), target.spec.target)
    spec = dataclasses.replace(target.spec, drafters=(("eagle3", config),))
    return Params(target.target, {"eagle3": read(folder, config, "float32")}, spec)
