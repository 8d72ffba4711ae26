"""Fingerprints of arrays: check that a table or a model is the one a file was made for."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np


def fingerprint(tree: Any) -> str:
    """Hash the bytes of all arrays of a pytree, in order, to twelve hexadecimal digits."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:12]
