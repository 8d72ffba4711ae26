"""Measure how fast a checkpoint loads, against reading its files alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loading.synthetic import choose_config, count_bytes, write_checkpoint
from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.io.files.tensors import weight_dtype

_READ_BYTES = 2**24


def measure_load(
    gigabytes: float = 8.0,
    shards: int = 4,
    dtype: str = "bfloat16",
    repeats: int = 3,
    folder: Path | None = None,
    devices: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write a checkpoint, load it in new processes, and read its files alone, in turn.

    Files are read from the page cache as far as they fit. The checkpoint is deleted. The processes
    need the device's memory, so this one should not have started it.

    Args:
      gigabytes: bytes of the bfloat16 weights / 1e9.
      shards: number of files.
      dtype: dtype to load the weights as.
      repeats: number of loads.
      folder: where to write the checkpoint; by default the folder of temporary files.
      devices: number of devices that share it. A CPU shows as many virtual ones.
      progress: receives lines for people.

    Returns:
      A report with `settings`, `bytes` of the files' tensors, `shard_bytes` of a file, `device`,
      `versions`, and `samples`: {"read_seconds", "memory_seconds", "seconds", "weight_bytes",
      "peak_bytes"} of each load. `memory_seconds` is the first use of as much memory as the weights
      take, on a CPU; else None. `peak_bytes` is the most host memory that the process held beyond
      what it held before, without the weights. Arrays that every device holds count once for each.

    Raises:
      ValueError: a number is out of range, the disk has no room, or a load fails.
    """
    if shards < 1 or repeats < 1 or devices < 1:
        raise ValueError("--shards, --repeats and --tp must be at least 1")
    config = choose_config(gigabytes)
    size, samples = count_bytes(config), []
    with tempfile.TemporaryDirectory(prefix="jaxspec-load-", dir=folder) as name:
        progress(f"writing {size / 1e9:.2f} GB to {name}")
        write_checkpoint(Path(name), config, shards)
        for number in range(repeats):
            read = time_reading(Path(name))
            held = count_bytes(config, weight_dtype(dtype))
            loaded = _load_once(Path(name), dtype, held, devices)
            samples.append({"read_seconds": read} | loaded)
            progress(f"load {number + 1} of {repeats}: {loaded['seconds']:.2f} s")
    settings = {"gigabytes": gigabytes, "shards": shards, "dtype": dtype, "repeats": repeats}
    settings["devices"] = devices
    about = {key: [one.pop(key) for one in samples][0] for key in ("device", "versions")}
    layers = {"bytes": size, "shard_bytes": size // shards, "layers": config.num_layers}
    return {"settings": settings, **layers, **about, "samples": samples}


def time_reading(folder: Path) -> float:
    """Return the seconds that reading all files of a folder takes, into the same memory."""
    memory, start = memoryview(np.zeros(_READ_BYTES, np.uint8)), time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(memory):
                pass
    return time.perf_counter() - start


def render_load(report: dict[str, Any]) -> str:
    """Render medians of a report of `measure_load` as text."""
    samples = report["samples"]
    timed = [name for name, value in samples[0].items() if value is not None]
    medians = {name: statistics.median(one[name] for one in samples) for name in timed}
    rate, size = fixed(2, " GB/s"), report["bytes"]
    rows = [
        ("files read alone, as cached", rate(size / medians["read_seconds"] / 1e9)),
        ("loading", rate(size / medians["seconds"] / 1e9)),
        ("seconds of a load", fixed(2)(medians["seconds"])),
        ("weights", fixed(2, " GB")(medians["weight_bytes"] / 1e9)),
        ("one file", fixed(2, " GB")(report["shard_bytes"] / 1e9)),
        ("peak host memory beyond the weights", fixed(2, " GB")(medians["peak_bytes"] / 1e9)),
    ]
    if "memory_seconds" in medians:
        first_use = medians["weight_bytes"] / medians["memory_seconds"] / 1e9
        rows.insert(1, ("new memory used alone, for the weights", rate(first_use)))
    devices = report["settings"]["devices"]
    where = report["device"]["kind"] + (f" x {devices}" if devices > 1 else "")
    title = f"{size / 1e9:.2f} GB as {report['settings']['dtype']} on {where}"
    return Table(
        [Column(title), Column(f"median of {len(samples)}", align="right")], rows
    ).to_text()


def _load_once(folder: Path, dtype: str, size: int, devices: int) -> dict[str, Any]:
    module = "benchmarks.loading.one_load"
    command = [sys.executable, "-m", module, str(folder), dtype, str(size), str(devices)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(f"the load failed: {reason}")
    return json.loads(done.stdout.splitlines()[-1])
