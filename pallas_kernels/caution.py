"""Which of XLA's choices are turned off in programs for Hopper and later GPUs.

XLA writes no kernels by Triton there: products go to cuBLAS, sums to XLA's own loops. The kernels
of this package stay. All drafted texts and rounds that were right on a Hopper (`docs/gpu.md`) are
from such programs; nobody has compared texts with XLA's own choices yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pallas_kernels.device import Device

# This variable names options of CAUTIOUS, with commas between them, for which XLA's own choice
# stays; "all": for all of them.
ALLOW = "JAXSPEC_XLA_ALLOW"
TRITON_PRODUCTS = "xla_gpu_enable_triton_gemm"
# Options of the compiler.
CAUTIOUS: Mapping[str, bool | str] = {
    TRITON_PRODUCTS: False,
    # It times a kernel of Triton for each small sum, some of which use the bulk copy engine.
    "xla_gpu_experimental_enable_fusion_autotuner": False,
    # It hands slices to cuBLAS by their address.
    "xla_gpu_enable_dynamic_slice_fusion": False,
    # Kernels of a command buffer run one after the other.
    "xla_gpu_command_buffer_scheduling_mode": "SERIALIZE",
    # Norms and sums by Triton. The other two suit cuBLAS: two products of the same rows would
    # become one, whose weights XLA concatenates in each round; and few rows would be copied to make
    # them more, which it does not need.
    "xla_disable_hlo_passes": "triton-softmax-rewriter,fusion-block-level-rewriter,dot-merger,"
    "cublas-pad-for-gemms",
}


def choose_cautious(device: Device) -> dict[str, bool | str]:
    """Return the options of CAUTIOUS that programs of a device need."""
    allowed = os.environ.get(ALLOW, "").split(",")
    if not needs_caution(device) or "all" in allowed:
        return {}
    return {name: value for name, value in CAUTIOUS.items() if name not in allowed}


def needs_caution(device: Device) -> bool:
    """Whether a device is a Hopper or a later GPU."""
    return (device.compute_capability or (0, 0)) >= (9, 0)
