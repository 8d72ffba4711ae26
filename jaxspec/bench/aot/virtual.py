"""Compile the programs of a shared target for virtual CPU devices, which need no plugin.

What each device holds and what devices exchange is what GPUs would; kernels and times are a CPU's,
and so is the dtype of sums: float32.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from jaxspec.bench.aot.report import check_call

# The name of virtual devices in place of a GPU's.
VIRTUAL = "cpu"


def compile_virtual(
    *, part: str = "rounds", devices: int = 1, experts: str = "channel", **options: Any
) -> dict[str, Any]:
    """Compile rounds or a prefill in a process with virtual devices.

    Args:
      part, devices, experts, options: see `jaxspec.bench.aot.report.compile_decode_loop`.

    Returns:
      `gpu` (VIRTUAL), `part`, `options`, `devices`, `experts`, `compiles`, and `error` (one line)
      or `seconds` of lowering and compilation, `memory` in bytes on each device (`arguments`,
      `aliased`), `cache_bytes` and `collectives`, see `pallas_kernels.aot.collectives`.

    Raises:
      ValueError: an option is out of range, or a single device shares nothing.
    """
    options = check_call(part=part, devices=devices, experts=experts, **options)
    if devices == 1:
        raise ValueError(f"--gpu {VIRTUAL} shows what devices exchange: give --tp 2 or more")
    shared = {"devices": devices, "experts": experts}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    command = [sys.executable, "-P", "-c", "from jaxspec.bench.aot.virtual import _main; _main()"]
    job = json.dumps({"part": part, "options": options | shared})
    done = subprocess.run(command, input=job, env=environment, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    found = {"compiles": False, "error": lines[-1][:500]}
    if done.returncode == 0:
        found = {"compiles": True} | json.loads(done.stdout.splitlines()[-1])
    return {"gpu": VIRTUAL, "part": part, "options": options} | shared | found


def _main() -> None:
    """Compile the job on standard input, and print what is found."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from jaxspec.bench.aot.shared import shared_loop, shared_prefill
    from pallas_kernels.aot.collectives import list_collectives
    from pallas_kernels.aot.lower import lower_on

    job = json.load(sys.stdin)
    make = {"rounds": shared_loop, "prefill": shared_prefill}[job["part"]]
    program = make(**job["options"])
    started = time.perf_counter()
    lowered = lower_on(program, Mesh(np.array(jax.devices()), ("model",)), "cpu")
    middle = time.perf_counter()
    compiled = lowered.compile()
    seconds = {"lower": middle - started, "compile": time.perf_counter() - middle}
    memory = compiled.memory_analysis()
    held = {
        "arguments": memory.argument_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
    }
    collectives = list_collectives(compiled.as_text())
    found = {"seconds": seconds, "memory": held, "collectives": collectives}
    print(json.dumps(found | program.facts))
