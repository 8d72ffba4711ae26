"""GPUs that programs can be compiled for, as XLA describes them."""

from __future__ import annotations

import dataclasses

_KIB, _GIB = 2**10, 2**30


@dataclasses.dataclass(frozen=True)
class GPU:
    """A GPU as XLA must know it, from NVIDIA's data sheets and CUDA programming guide.

    Attributes:
      name: the driver's name of it.
      capability: compute capability (major, minor).
      cores: number of streaming multiprocessors.
      fpus: float32 units per multiprocessor.
      threads: resident threads per multiprocessor.
      shared: KiB of shared memory per multiprocessor.
      shared_block: KiB of shared memory that one block may ask for.
      bandwidth: bytes/s of device memory.
      memory: GiB of device memory.
      l2_kib: KiB of L2 cache.
      clock: GHz.
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
    l2_kib: int
    clock: float

    @property
    def l2(self) -> int:
        """Bytes of L2 cache."""
        return self.l2_kib * _KIB

    @property
    def architecture(self) -> str:
        """The name that ptxas gives it; from Hopper on with the generation's own instructions."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def dtype(self) -> str:
        """The 16-bit dtype that it multiplies in."""
        return "bfloat16" if self.capability >= (8, 0) else "float16"


GPUS = {
    "h100": GPU("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 228, 227, 3.35e12, 79, 51200, 1.98),
    "h200": GPU("NVIDIA H200", (9, 0), 132, 128, 2048, 228, 227, 4.8e12, 140, 51200, 1.98),
    "b200": GPU("NVIDIA B200", (10, 0), 148, 128, 2048, 228, 227, 7.67e12, 178, 129536, 1.965),
    "a100": GPU("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 164, 163, 2.04e12, 79, 40960, 1.41),
    "l4": GPU("NVIDIA L4", (8, 9), 58, 128, 1536, 100, 99, 3.0e11, 22, 49152, 2.04),
    "t4": GPU("Tesla T4", (7, 5), 40, 64, 1024, 64, 64, 3.2e11, 15, 4096, 1.59),
}  # fmt: skip


def find_gpu(name: str) -> GPU:
    """Return the GPU called `name`.

    Raises:
      ValueError: unknown name; the message lists the known ones.
    """
    if name not in GPUS:
        raise ValueError(f"unknown GPU {name!r}: choose one of {', '.join(GPUS)}")
    return GPUS[name]


def format_target_config(gpu: GPU) -> str:
    """Format a GPU as XLA's text-format GpuTargetConfigProto."""
    major, minor = gpu.capability
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * _KIB,
        "shared_memory_per_core": gpu.shared * _KIB,
        "shared_memory_per_block_optin": gpu.shared_block * _KIB,
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
        "device_memory_size": gpu.memory * _GIB,
        "device_address_bits": 64,
        "device_vendor": '"NVIDIA Corporation"',
        "name": f'"{gpu.name}"',
        # Versions that allow command buffers with conditionals.
        "driver_version": '"13.0.0"',
        "runtime_version": '"12.8.0"',
        "compile_time_toolkit_version": '"12.8.0"',
    }
    fields = "\n".join(f"  {key}: {value}" for key, value in info.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return (
        f"gpu_device_info {{\n{fields}\n  {capability}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "{gpu.name}"\n'
    )
