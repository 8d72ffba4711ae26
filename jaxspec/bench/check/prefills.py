"""Time prefills of long prompts and of batches, and their peak of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.params import Params


def measure_prefills(params: Params, batches: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Run prefills of random prompts, the smallest batch first.

    Args:
      batches: lengths of the prompts that run together.

    Returns:
      {"length, length, ...": {"seconds", "compile_seconds", "peak_bytes" (of this process so far,
      weights included; None where the device does not tell)}}.
    """
    size, found = params.spec.target.vocab_size, {}
    for lengths in batches:
        draw = np.random.default_rng(lengths[0]).integers
        prompts = [draw(0, size, length).tolist() for length in lengths]
        given = prompts if len(prompts) > 1 else prompts[0]
        session = prepare(params, given, max_new_tokens=16, budget=32)
        with matmul_precision(session):
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                jax.block_until_ready(run_prefill(session))
                seconds.append(time.perf_counter() - began)
        steady = min(seconds[1:])
        found[", ".join(map(str, lengths))] = {
            "seconds": steady,
            "compile_seconds": max(seconds[0] - steady, 0.0),
            "peak_bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        }
    return found
