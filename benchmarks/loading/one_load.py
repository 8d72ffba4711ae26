"""Load a checkpoint in this process and print what it took, as JSON.

`measure_load` runs it in processes of their own: only a new process has memory and compilations
that are those of one load.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxspec

# Prints the seconds that writing to each page of as many new bytes takes.
_WRITE = """
import sys, time
import numpy as np
start = time.perf_counter()
np.empty(int(sys.argv[1]), np.uint8)[::4096] = 1
print(time.perf_counter() - start)
"""


def main() -> None:
    """Load the checkpoint that the arguments name: its folder, the dtype, bytes of its weights, the
    number of devices that share it.
    """
    folder, dtype, size, devices = sys.argv[1:]
    device = jnp.zeros(0).block_until_ready().devices().pop()  # starts the device
    on_cpu = device.platform == "cpu"
    memory = time_new_memory(int(size)) if on_cpu else None
    mesh = None
    if int(devices) > 1:
        mesh = jax.make_mesh((int(devices),), ("model",), devices=jax.devices()[: int(devices)])
    before, start = read_memory()[0], time.perf_counter()
    params = jax.block_until_ready(jaxspec.load(folder, dtype=dtype, progress=False, mesh=mesh))
    seconds, (_, peak) = time.perf_counter() - start, read_memory()
    weights = sum(
        part.data.nbytes
        for leaf in jax.tree.leaves(params.target)
        for part in leaf.addressable_shards
    )
    report = {
        "seconds": seconds,
        "memory_seconds": memory,
        "weight_bytes": weights,
        "peak_bytes": peak - before - (weights if on_cpu else 0),
        "device": {"platform": device.platform, "kind": device.device_kind},
        "versions": {"jax": jax.__version__},
    }
    print(json.dumps(report))


def time_new_memory(size: int) -> float:
    """Return the seconds of the first use of `size` bytes by a process.

    Afterwards the bytes are free again. A virtual machine may first have to get them from its host,
    which a load that follows at once does not wait for.
    """
    command = [sys.executable, "-c", _WRITE, str(size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def read_memory() -> tuple[int, int]:
    """Return the bytes of memory that this process holds, and the most that it has held.

    Where Linux does not say, both are the most that it has held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        # `getrusage` would report the parent's peak if that was larger.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, most = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, most
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return most, most


if __name__ == "__main__":
    main()
