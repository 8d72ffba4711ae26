"""What `jaxspec check` does on a device, the most important first."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.bench.architectures import (
    abstract_params,
    architecture,
)
from jaxspec.bench.check.agreement import measure_agreement
from jaxspec.bench.check.causes import ALLOWED, find_causes, try_ways
from jaxspec.bench.check.kernel_errors import check_kernels
from jaxspec.bench.check.kernel_profile import profile_rounds
from jaxspec.bench.check.layer_kernels import check_layer_kernels
from jaxspec.bench.check.lossless import check_autoregressive, check_lossless, find_processor
from jaxspec.bench.check.rounds import SETTINGS, measure_prefills, measure_rounds, measure_stream
from jaxspec.bench.check.run_steps import Step, run_steps, take_over
from jaxspec.bench.check.shared_target import RandomWeights, check_devices
from jaxspec.bench.check.verification import measure_verification
from jaxspec.bench.report.summary import describe_environment
from jaxspec.core.params import Params
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.tuner.calibrate.ceilings import CEILING_SIZES, find_memory_bytes, measure_ceilings
from pallas_kernels.caution import needs_caution
from pallas_kernels.device import current_device


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large the measurements are.

    Attributes:
      arch: architecture of the rounds, see `jaxspec.bench.architectures`.
      dtype: of its weights.
      real: compile the kernels for this device, at the shapes of 8B models; else interpret them.
      context: tokens of the prompts of rounds. rounds: of a sample.
      widths: rows of trees that are verified alone.
      tokens: generated where tokens are compared.
      prefills: lengths of the prompts of each batch; the last is the longest prompt alone.
    """

    arch: str
    dtype: str
    real: bool
    context: int
    rounds: int
    widths: tuple[int, ...]
    tokens: int
    prefills: tuple[tuple[int, ...], ...]


GPU = Sizes(
    "qwen3-8b",
    "bfloat16",
    True,
    1024,
    20,
    (64, 256),
    128,
    ((512,), (2048,), (2048, 100, 100, 100), (8192,), (32_768 - 64,)),
)
CPU = Sizes(
    "mini",
    "float32",
    False,
    128,
    4,
    (16,),
    32,
    ((64,), (600,), (1500, 75, 75, 75), (1500,)),
)
# Least minutes that a step needs: of the large ones, which would otherwise outlast the given time.
_NEEDS = {"prefill": 1.0}
# Steps that use a target that devices share, if they do: the part of their names before ":".
_SHARED = ("lossless", "rounds", "profile", "prefill")
# Architectures to choose from, the largest first, and the share of the memory that weights may
# take.
_FAMILY, MOST_WEIGHTS = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b", "qwen3-0.6b"), 0.6


def choose_sizes(platform: str, memory: float, bfloat16: bool) -> Sizes:
    """Choose sizes for a device.

    Args:
      platform: `gpu` or `cpu`.
      memory: usable bytes.
      bfloat16: whether the device computes in it; older GPUs get float16.
    """
    if platform != "gpu":
        return CPU
    dtype = "bfloat16" if bfloat16 else "float16"

    def fits(arch: str) -> bool:
        leaves = jax.tree.leaves(abstract_params(architecture(arch), jnp.dtype(dtype)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) < MOST_WEIGHTS * memory

    arch = next(filter(fits, _FAMILY), _FAMILY[-1])
    return dataclasses.replace(GPU, arch=arch, dtype=dtype)


def check_device(
    minutes: float,
    sizes: Sizes | None = None,
    progress: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
    mesh: Mesh | None = None,
    before: dict[str, Any] | None = None,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the whole check on the default device.

    With a mesh, texts, rounds and prefills are those of a target that its devices share. It is as
    large as for one device, so that figures can be compared.

    Args:
      minutes: steps begin within this time.
      sizes: see `Sizes`; None chooses them for the device.
      progress, save: see `run_steps`.
      mesh: devices that share the target, on the axis "model"; None or one: nothing is shared.
      before: the report of a check that ended early. Its steps are not run again.
      only: names of steps to run, in this order; none: all of them.

    Returns:
      A report ready for JSON: device and versions, `sizes`, `mesh` (None, or the number of devices
      on the axis `model` and the `steps` that ran on them), and what `run_steps` returns.

    Raises:
      ValueError: the devices cannot share the targets, `before` is of another device, or there is
        no such step.
    """
    device = jax.devices()[0]
    if sizes is None:
        modern = device.platform != "gpu" or float(device.compute_capability) >= 8
        sizes = choose_sizes(device.platform, find_memory_bytes(), modern)
    if mesh is not None and mesh.size == 1:
        mesh = None
    if mesh is not None:
        check_devices(mesh.size, sizes.arch)
    weights = {"params": {"norm": {"scale": jnp.ones(1, sizes.dtype)}}}
    report = describe_environment(Params(weights, {}, architecture(sizes.arch)))
    report["sizes"] = dataclasses.asdict(sizes)
    report["mesh"] = None if mesh is None else {"model": mesh.size, "steps": list(_SHARED)}
    if before is not None:
        report |= take_over(report, before)
    steps = _choose(_list_steps(sizes, report, mesh), only)
    return run_steps(steps, minutes, report, progress, save)


def _choose(steps: Sequence[Step], only: Sequence[str]) -> Sequence[Step]:
    """Choose steps by name; the rates of the device come first, as floors need them."""
    known = {step.name: step for step in steps}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"no step {unknown[0]!r} here: {choose_one(unknown[0], known)}")
    wanted = dict.fromkeys(("ceilings", *only)) if only else known
    return [known[name] for name in wanted if name in known]


def _list_steps(sizes: Sizes, report: dict[str, Any], mesh: Mesh | None) -> Sequence[Step]:
    weights = RandomWeights(sizes.arch, sizes.dtype, mesh)

    def rates() -> tuple[float, float] | None:
        if mesh is not None and jax.default_backend() == "cpu":
            return None  # virtual devices share the rates that were measured
        found = report["steps"]["ceilings"]["result"]
        names = ("copy_bytes_per_second", "matmul_flops_per_second")
        return tuple(found[name]["median"] for name in names)

    shape = {"context": sizes.context, "rounds": sizes.rounds}
    megabytes, size = CEILING_SIZES["gpu" if sizes.real else "cpu"]
    ceilings = functools.partial(
        measure_ceilings, jnp.dtype(sizes.dtype), megabytes=megabytes, size=size
    )
    steps = [
        Step("ceilings", ceilings),
        Step("layer kernels", functools.partial(check_layer_kernels, sizes.real)),
        Step("kernels", functools.partial(check_kernels, sizes.real)),
        Step("lossless", functools.partial(check_lossless, sizes.tokens, mesh=mesh)),
    ]
    processor = find_processor()
    if processor is not None:
        steps.append(Step("processor", lambda: check_autoregressive(sizes.tokens, processor)))
    steps.append(Step("causes", functools.partial(find_causes, report, sizes.tokens // 2)))
    steps += [
        Step(
            f"rounds: {setting.name}",
            lambda setting=setting: measure_rounds(
                weights.shared(), setting, rates=rates(), **shape
            ),
        )
        for setting in SETTINGS
    ]
    pieces = Step(
        "verification", lambda: measure_verification(weights.alone(), sizes.widths, sizes.context)
    )
    shared = [
        Step("rounds: stream", lambda: measure_stream(weights.shared(), **shape)),
        Step("profile", lambda: profile_rounds(weights.shared(), context=sizes.context)),
        Step("prefill", lambda: measure_prefills(weights.shared(), sizes.prefills)),
    ]
    # The pieces need a target on one device: they come first, or after all that shares one.
    steps += [pieces, *shared] if mesh is None else [*shared, pieces]
    steps.append(Step("agreement", functools.partial(measure_agreement, sizes.tokens)))
    if needs_caution(current_device()):
        steps.append(Step("options", lambda: try_ways(ALLOWED, sizes.tokens // 2)))
    needs = _NEEDS if sizes.real else {}
    return [dataclasses.replace(step, minutes=needs.get(step.name, 0.0)) for step in steps]
