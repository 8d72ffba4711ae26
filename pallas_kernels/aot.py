"""Compile for a GPU that is not there, and report what the program became.

The CUDA PJRT plugin holds XLA's whole GPU compiler and needs no driver: given a description of a
GPU it compiles for that one (`jax.experimental.topologies`). Every compilation runs in a process of
its own, since XLA's flags are read once a process, a kernel for another architecture can abort it,
and kernels are cached by process.

What this cannot tell: times, and what autotuning would choose (a real GPU may run library matrix
products in place of fusions).
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pallas_kernels import registry
from pallas_kernels.aot_report import describe

_PLUGINS = {"jax-cuda12-plugin": "jax-cuda12-pjrt", "jax-cuda13-plugin": "jax-cuda13-pjrt"}
_TIMEOUT = 900


@dataclasses.dataclass(frozen=True)
class GPU:
    """What XLA must know of a GPU; figures of NVIDIA's data sheets and of its CUDA programming
    guide.

    Attributes:
      name: as the driver gives it. capability: compute capability.
      cores: streaming multiprocessors; fpus: float32 units of one; threads: resident threads of
        one.
      shared, shared_block: bytes of shared memory of a multiprocessor, and that one block may ask
        for.
      bandwidth: bytes/s of device memory; memory: its bytes; l2: bytes of cache. clock: GHz.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    threads: int
    shared: int
    shared_block: int
    bandwidth: float
    memory: int
    l2: int
    clock: float

    @property
    def architecture(self) -> str:
        """ptxas' name of it; from Hopper on with the instructions that only this generation has."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _kib(number: int) -> int:
    return number * 1024


def _gib(number: int) -> int:
    return number * 1024**3


GPUS = {
    "h100": GPU(
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        132,
        128,
        2048,
        _kib(228),
        _kib(227),
        3.35e12,
        _gib(79),
        _kib(51200),
        1.98,
    ),
    "h200": GPU(
        "NVIDIA H200",
        (9, 0),
        132,
        128,
        2048,
        _kib(228),
        _kib(227),
        4.8e12,
        _gib(140),
        _kib(51200),
        1.98,
    ),
    "b200": GPU(
        "NVIDIA B200",
        (10, 0),
        148,
        128,
        2048,
        _kib(228),
        _kib(227),
        7.67e12,
        _gib(178),
        _kib(129536),
        1.965,
    ),
    "a100": GPU(
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        108,
        64,
        2048,
        _kib(164),
        _kib(163),
        2.04e12,
        _gib(79),
        _kib(40960),
        1.41,
    ),
    "l4": GPU(
        "NVIDIA L4", (8, 9), 58, 128, 1536, _kib(100), _kib(99), 3.0e11, _gib(22), _kib(49152), 2.04
    ),
    "t4": GPU(
        "Tesla T4", (7, 5), 40, 64, 1024, _kib(64), _kib(64), 3.2e11, _gib(15), _kib(4096), 1.59
    ),
}


class Program(NamedTuple):
    """What is compiled.

    Attributes:
      function: jitted. args: arrays or `jax.ShapeDtypeStruct`. static: keywords.
      facts: JSON values that become part of the report.
    """

    function: Callable
    args: tuple
    static: dict[str, Any] = {}
    facts: dict[str, Any] = {}


def gpu(name: str) -> GPU:
    """The GPU called `name`; ValueError names those that are known."""
    if name not in GPUS:
        raise ValueError(f"unknown GPU {name!r}: choose one of {', '.join(GPUS)}")
    return GPUS[name]


def target_config(gpu: GPU) -> str:
    """`gpu` as XLA's text-format GpuTargetConfigProto."""
    major, minor = gpu.capability
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": _kib(48),
        "shared_memory_per_core": gpu.shared,
        "shared_memory_per_block_optin": gpu.shared_block,
        "threads_per_core_limit": gpu.threads,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "memory_bandwidth": int(gpu.bandwidth),
        "l2_cache_size": gpu.l2,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "device_address_bits": 64,
        "device_vendor": '"NVIDIA Corporation"',
        "name": f'"{gpu.name}"',
        # Versions that allow command buffers with conditionals.
        "driver_version": '"13.0.0"',
        "runtime_version": '"12.8.0"',
        "compile_time_toolkit_version": '"12.8.0"',
    }
    fields = "\n".join(f"  {key}: {value}" for key, value in info.items())
    return (
        f"gpu_device_info {{\n{fields}\n  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
        f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 patch: 0 }}\ndevice_description_str: "{gpu.name}"\n'
    )


def available() -> tuple[bool, str]:
    """Whether programs can be compiled for GPUs here, and the reason: the plugin's version, or what
    to install.
    """
    installed = {
        found.metadata["Name"].lower().replace("_", "-"): found.version
        for found in importlib.metadata.distributions()
    }
    for plugin, runtime in _PLUGINS.items():
        if plugin in installed and runtime in installed:
            return True, f"{plugin} {installed[plugin]}"
    return (
        False,
        "JAX's CUDA plugin is not installed: pip install jax-cuda12-plugin jax-cuda12-pjrt (no GPU is needed)",
    )


def compile_report(
    factory: str,
    options: dict[str, Any],
    gpu_name: str,
    *,
    large: int = 2**23,
    spills: bool = True,
    flags: str = "",
) -> dict[str, Any]:
    """Compile a program for a GPU in a fresh process.

    Args:
      factory: `module:function`, called there as `function(**options)`, returning a `Program`.
      options: JSON values.
      gpu_name: one of `GPUS`.
      large: bytes from which results are listed.
      spills: let ptxas, where there is one, count registers and spills.
      flags: further XLA flags.

    Returns:
      What `aot_report.describe` says, with `gpu`, `compiles`, `error` (a line, or None), `seconds`
      of lowering and compilation and `memory` in bytes (`arguments`, `outputs`, `aliased`,
      `temporary`), and `tree_attention`, the implementation that the registry takes there. Of a
      program that does not compile: `gpu`, `compiles` and `error`.

    Raises:
      ValueError: unknown GPU. ImportError: the plugin is not installed.
    """
    target = gpu(gpu_name)
    can, reason = available()
    if not can:
        raise ImportError(reason)
    with tempfile.TemporaryDirectory() as dump:
        job = {"factory": factory, "options": options, "gpu": gpu_name, "dump": dump}
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text {flags}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        command = [sys.executable, "-P", "-c", "from pallas_kernels.aot import _main; _main()"]
        status, errors = _run(command, json.dumps(job), environment)
        if status is None:
            return {
                "gpu": gpu_name,
                "compiles": False,
                "error": f"not compiled within {_TIMEOUT} s",
            }
        result = Path(dump) / "result.json"
        if not result.exists():
            return {
                "gpu": gpu_name,
                "compiles": False,
                "error": _last_line(errors) or f"exit status {status}",
            }
        report = json.loads(result.read_text(encoding="utf-8"))
        return report | (
            describe(Path(dump), target.architecture, large, spills) if report["compiles"] else {}
        )


def _run(command: list[str], text: str, environment: dict[str, str]) -> tuple[int | None, str]:
    """Exit status (None: not done in time) and standard error of a command given `text`; its
    assembler ends with it.
    """
    pipes = dict(
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            errors = process.communicate(text, timeout=_TIMEOUT)[1]
            return process.returncode, errors
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return None, ""
            raise


def _last_line(text: str) -> str:
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and "cudart" not in line and "absl::" not in line
    ]
    errors = [line for line in lines if "ERROR" in line or "Error" in line]
    return (errors or lines or [""])[-1][:500]


def _main() -> None:
    """The fresh process: a job on standard input, the result beside XLA's dump."""
    job = json.load(sys.stdin)
    module, name = job["factory"].split(":")
    target = gpu(job["gpu"])
    with on_device(target):
        attention = registry.explain("tree_attention").name
        report = {"gpu": job["gpu"], "compiles": False, "error": None, "tree_attention": attention}
        program = getattr(importlib.import_module(module), name)(**job["options"])
        started = time.perf_counter()
        try:
            lowered = lower(program, target)
            middle = time.perf_counter()
            compiled = lowered.compile()
        except Exception as error:  # noqa: BLE001  (whatever the compiler says is the result)
            report["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        else:
            memory = compiled.memory_analysis()
            seconds = {"lower": middle - started, "compile": time.perf_counter() - middle}
            report |= {
                "compiles": True,
                "seconds": seconds,
                "memory": _memory(memory),
            } | program.facts
            # The module's name in the dump; what else was compiled on the way has another.
            (Path(job["dump"]) / "program.txt").write_text(compiled.as_text(), encoding="utf-8")
    (Path(job["dump"]) / "result.json").write_text(json.dumps(report), encoding="utf-8")


def _memory(memory) -> dict[str, int]:
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }


def on_device(target: GPU):
    """Context in which the registry chooses for `target`."""
    return registry.for_device(registry.Device("cuda", target.capability, target.cores))


def lower(program: Program, target: GPU):
    """`program` lowered for `target` (a `jax.stages.Lowered`), in a process whose XLA flags are
    already set.
    """
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(
        platform="cuda", topology="1x1x1", target_config=target_config(target)
    )
    mesh = Mesh(np.array(topology.devices), ("device",))
    place = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), program.args
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return program.function.trace(*args, **program.static).lower(lowering_platforms=("cuda",))
