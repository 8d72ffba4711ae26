"""Compile for a GPU you don't have, and report the contents of the program.

The CUDA PJRT plugin contains XLA's whole GPU compiler and needs no driver: it compiles for any GPU
that is described to it (`jax.experimental.topologies`). Every compilation runs in a process of its
own, because XLA reads its flags once per process, a kernel for another architecture can abort the
process, and kernels are cached per process.

The report gives no times and does not know what autotuning would choose: a real GPU may run library
matrix products instead of fusions.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pallas_kernels import registry
from pallas_kernels.aot.collectives import list_collectives
from pallas_kernels.aot.gpus import find_gpu
from pallas_kernels.aot.lower import lower, on_device
from pallas_kernels.aot.report import describe_program

_PLUGINS = {"jax-cuda12-plugin": "jax-cuda12-pjrt", "jax-cuda13-plugin": "jax-cuda13-pjrt"}
_TIMEOUT = 900


def available() -> tuple[bool, str]:
    """Check whether this machine can compile for GPUs.

    Returns:
      (True, the plugin's name and version) or (False, what to install).
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
        "JAX's CUDA plugin is not installed: pip install jax-cuda12-plugin jax-cuda12-pjrt "
        "(no GPU is needed)",
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
      factory: `module:function`. The fresh process calls `function(**options)`, which returns a
        `Program`.
      options: JSON values.
      gpu_name: one of `gpus.GPUS`.
      large: list results of at least this many bytes.
      spills: count registers and spills, if ptxas is installed.
      flags: further XLA flags.

    Returns:
      The report of `report.describe_program`, with `gpu`, `compiles`, `error` (one line, or
      None), `seconds` of lowering and compilation and the processor's of both, `memory` in bytes
      on each GPU (`arguments`, `outputs`, `aliased`, `temporary`), `collectives` (see
      `collectives`), and `tree_attention`, the implementation that the registry chooses
      for the GPU. For a program that does not compile: `gpu`, `compiles` and `error`.

    Raises:
      ValueError: unknown GPU.
      ImportError: the plugin is not installed.
    """
    target = find_gpu(gpu_name)
    can, reason = available()
    if not can:
        raise ImportError(reason)
    with tempfile.TemporaryDirectory() as dump:
        job = {"factory": factory, "options": options, "gpu": gpu_name, "dump": dump}
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            # A program from a cache leaves no dump, and its seconds say nothing.
            "JAX_ENABLE_COMPILATION_CACHE": "0",
            "XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text {flags}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        command = [
            sys.executable,
            "-P",
            "-c",
            "from pallas_kernels.aot.compile import _main; _main()",
        ]
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
            describe_program(Path(dump), target.architecture, large, spills)
            if report["compiles"]
            else {}
        )


def _run(command: list[str], text: str, environment: dict[str, str]) -> tuple[int | None, str]:
    """Run a command on `text` and end its child processes with it.

    Returns:
      The exit status (None after a timeout) and standard error.
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
    """Compile the job on standard input and write the result to the folder of XLA's dump."""
    job = json.load(sys.stdin)
    module, name = job["factory"].split(":")
    target = find_gpu(job["gpu"])
    with on_device(target):
        attention = registry.explain("tree_attention").name
        report = {"gpu": job["gpu"], "compiles": False, "error": None, "tree_attention": attention}
        program = getattr(importlib.import_module(module), name)(**job["options"])
        started, used = time.perf_counter(), time.process_time()
        try:
            lowered = lower(program, target)
            middle = time.perf_counter()
            compiled = lowered.compile()
        except Exception as error:  # any error of the compiler is a result
            report["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        else:
            memory = compiled.memory_analysis()
            seconds = {
                "lower": middle - started,
                "compile": time.perf_counter() - middle,
                # Of all threads: other work on the machine hardly changes it.
                "processor": time.process_time() - used,
            }
            report |= {
                "compiles": True,
                "seconds": seconds,
                "memory": _memory(memory),
                "collectives": list_collectives(compiled.as_text()),
            } | program.facts
            # The dump also holds other programs that were compiled on the way.
            (Path(job["dump"]) / "program.txt").write_text(compiled.as_text(), encoding="utf-8")
    (Path(job["dump"]) / "result.json").write_text(json.dumps(report), encoding="utf-8")


def _memory(memory) -> dict[str, int]:
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }
