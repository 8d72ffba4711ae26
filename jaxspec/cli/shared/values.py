"""Turn parsed command line options into values that the library takes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.call.options import group_options
from jaxspec.core.params import WEIGHTLESS
from jaxspec.core.runtime import distribution
from jaxspec.io.files import atomic

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxspec.core.params import Params
    from jaxspec.policies.protocol import Policy

# Seconds after which processes end when one of them no longer answers.
SILENCE = 30
SWITCH = {"auto": None, "on": True, "off": False}
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")
_DECODE_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "ignore_eos",
    "block_size",
    "depth",
    "acceptance",
    "capacity",
    "score_temperature",
)


def load_params(arguments: argparse.Namespace) -> Params:
    """Load the model and the drafters that the options of `add_model` name."""
    import jaxspec

    join_processes(arguments)
    return jaxspec.load(
        arguments.model,
        drafter=read_drafters(arguments),
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        cache_dtype=arguments.cache_dtype,
        mesh=make_mesh(getattr(arguments, "tp", None)),
        experts=getattr(arguments, "experts", "channel"),
    )


def join_processes(arguments: argparse.Namespace) -> None:
    """Join the processes that the options of `add_processes` name, if the command has these.

    Raises:
      ValueError: the options contradict each other, or no devices are shared.
    """
    import jax

    from jaxspec.core.runtime.processes import HostOptions, connect

    # `serve` joins before it loads, and the load comes here again.
    if jax.distributed.is_initialized():
        return
    names = ("coordinator", "process_id", "processes")
    hosts = HostOptions(*(getattr(arguments, name, None) for name in names))
    if hosts != HostOptions() and arguments.tp is None:
        raise ValueError("several processes share a target: give --tp, the number of all devices")
    connect(hosts, SILENCE)


def make_mesh(devices: int | None) -> Mesh | None:
    """Make the mesh of the first `devices` devices; None for None.

    Raises:
      ValueError: there are fewer, or some of another process would be left out.
    """
    import jax

    if devices is None:
        return None
    found = jax.device_count()
    if not 1 <= devices <= found:
        hint = ""
        if jax.default_backend() == "cpu":
            flag = f"--xla_force_host_platform_device_count={max(devices, 2)}"
            hint = f", or set XLA_FLAGS={flag} for virtual ones"
        raise ValueError(f"--tp is {devices}: give 1 to {found}, the number of devices{hint}")
    if jax.process_count() > 1 and devices != found:
        raise ValueError(
            f"--tp is {devices}: {jax.process_count()} processes have {found} devices, "
            "and must use them all"
        )
    return jax.make_mesh((devices,), ("model",), devices=jax.devices()[:devices])


def read_drafters(arguments: argparse.Namespace) -> str | dict[str, str] | None:
    """Return the value of --drafter as `jaxspec.load` takes it.

    Raises:
      ValueError: several sources without a name, or `ar` beside others.
    """
    given = arguments.drafter or ()
    if len(given) < 2 and not any("=" in item for item in given):
        return given[0] if given else None
    if any("=" not in item and ("/" in item or "\\" in item) for item in given):
        raise ValueError("give one --drafter SOURCE, or each as --drafter NAME=SOURCE")
    if "ar" in given:
        raise ValueError("ar decodes without a drafter: give --drafter ar alone")
    named = {name: source or name for name, _, source in (item.partition("=") for item in given)}
    return {name: source for name, source in named.items() if name not in WEIGHTLESS}


def choose_drafter(arguments: argparse.Namespace) -> str | None:
    """Return the drafter that --drafter chooses among the loaded ones, for `jaxspec.decode`.

    Those without files are there but never the default; None leaves the choice to the call.

    Raises:
      ValueError: one without files is named beside others.
    """
    without = [name for name in arguments.drafter or () if name in ("ar", *WEIGHTLESS)]
    if without and len(arguments.drafter) > 1:
        raise ValueError(f"{without[0]} has no files to load: give --drafter {without[0]} alone")
    return without[0] if without else None


def parse_numbers(arguments: argparse.Namespace, name: str) -> list[float]:
    """Return the numbers of an option that takes several, separated by commas.

    Raises:
      ValueError: an item is no number.
    """
    given = getattr(arguments, name)
    try:
        return [float(one) for one in given.split(",")]
    except ValueError:
        raise ValueError(f"--{name} is {given!r}: give numbers with commas") from None


def read_text(path: Path | None) -> str:
    """Read a file, or standard input for None.

    Raises:
      ValueError: it is not UTF-8.
    """
    try:
        # Halves of surrogate pairs pass: the tokenizer puts U+FFFD in their place.
        return sys.stdin.read() if path is None else path.read_text("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        source = path or "standard input"
        raise ValueError(f"{source} is not UTF-8 (byte {error.start}): save it as UTF-8") from None


def collect_decode_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments of `jaxspec.decode` from the options of `add_decode`."""
    return {name: getattr(arguments, name) for name in _DECODE_OPTIONS}


def collect_call(params: Params, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments of `jaxspec.decode` from the options of `add_call`.

    What rounds cost is measured if the policy needs it.
    """
    given = collect_decode_options(arguments) | {
        name: getattr(arguments, name) for name in (*_PENALTIES, "builder", "budget")
    }
    given |= {
        "stop": (*arguments.stop, *arguments.stop_id),
        "drafter": choose_drafter(arguments),
        "coupled": SWITCH[arguments.coupled],
        "lookup": choose_lookup(arguments),
        "template": arguments.template,
    }
    return group_options(**given, policy=make_policy(params, arguments.policy, given))


def choose_lookup(arguments: argparse.Namespace) -> bool | str | None:
    """Return what `jaxspec.Speculation` takes of --lookup."""
    return SWITCH.get(arguments.lookup, arguments.lookup)


def make_policy(
    params: Params, name: str | None, options: Mapping[str, Any]
) -> Policy | str | None:
    """Make the policy that --policy names; measure what rounds cost if it needs that.

    Args:
      name: value of --policy; None for no policy.
      options: keyword arguments of `jaxspec.decode`. Autoregressive decoding takes no policy.
    """
    from jaxspec.policies.registry import AUTOMATIC
    from jaxspec.tuner.calibrate.by_rows import policy_for

    if name in (None, AUTOMATIC):
        return name
    method = options["drafter"] or params.spec.default_drafter
    if method == "ar":
        return None
    return policy_for(params, method, name, options)


def check_folders(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse output files that could not be written, before anything is measured.

    Args:
      names: options that name files, such as `json`.

    Raises:
      FileNotFoundError: the folder of one of these files does not exist.
      IsADirectoryError: one of these files is a folder.
      ImportError: a plot is wanted, and matplotlib is not installed.
    """
    for name in names:
        path, option = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if path and not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"{option}: there is no directory {path.parent}: create it")
        if path and path.is_dir():
            raise IsADirectoryError(f"{option}: {path} is a directory: give a file in it")
        if path and name == "plot":
            distribution.require("bench", "matplotlib")


def save_json(path: Path | None, report: Any, indent: int | None = 1) -> None:
    """Write a report as JSON; do nothing without a path."""
    if path:
        atomic.write_text(path, json.dumps(report, indent=indent) + "\n")


def collect_settings(arguments: argparse.Namespace, *outputs: str) -> dict[str, Any]:
    """Return the options for a report, without output files. Of paths only the file names are kept.

    A report may be published, and the folders of its input files say nothing about the figures.

    Args:
      outputs: options to leave out.
    """
    return {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name not in ("run", *outputs)
    }


def show_progress(line: str) -> None:
    """Replace the last line of a terminal; write nothing to files and pipes."""
    if sys.stderr.isatty():
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
