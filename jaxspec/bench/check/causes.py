"""Find out which part of the compiler makes texts wrong: decode in processes with or without it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jaxspec
from jaxspec.bench.check.check_goals import find_texts
from jaxspec.bench.demo import DEMO_PROMPTS
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.call.options import group_options
from jaxspec.io.program_cache import SWITCH
from jaxspec.io.text.prompt_files import read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from pallas_kernels.caution import ALLOW, CAUTIOUS

METHOD, TIMEOUT = "jetspec-best_first@32", 150
_PROMPTS, _REPEATS = 2, 2
_TOGETHER = 3  # processes; more would wait for the device in turns


class Way(NamedTuple):
    """A way to run programs.

    Attributes:
      name: completes "texts ..." in the report.
      flags: of XLA.
      variables: further ones of the environment, {name: value}.
    """

    name: str
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = MappingProxyType({})


_NO_GRAPHS, _UNTIMED = "--xla_gpu_enable_command_buffer=", "--xla_gpu_autotune_level=0"
_NO_KERNELS, _NOT_KEPT = {"JAXSPEC_KERNELS": "reference"}, {SWITCH: "0"}
# What the others are compared with.
TRUTH = Way("on the processor", variables={"JAX_PLATFORMS": "cpu"})
WAYS = (
    Way("as usual"),
    Way("without most of these", (_NO_GRAPHS, _UNTIMED), _NO_KERNELS | _NOT_KEPT),
    Way("without kept programs", (), _NOT_KEPT),
    Way("without command buffers", (_NO_GRAPHS,)),
    Way("without timing of products", (_UNTIMED,)),
    Way(
        "without early launches",
        ("--xla_gpu_enable_pdl=false", "--xla_gpu_enable_pdl_launch=false"),
    ),
    Way("without kernels of jaxspec", (), _NO_KERNELS),
)
# What programs for Hopper leave out, allowed one by one, and all at once.
ALLOWED = tuple(
    Way(f"with XLA's own {name.removeprefix('xla_')}", (), {ALLOW: name}) for name in CAUTIOUS
) + (Way("with all of XLA's own choices", (), {ALLOW: "all"}),)


def find_causes(report: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Try each of WAYS, if the texts of the steps before went wrong.

    Args:
      report: of the check so far.
      tokens: to decode.

    Returns:
      See `try_ways`. Empty if texts were right.
    """
    failed = any("error" in report["steps"].get(step, {}) for step in ("lossless", "processor"))
    if not failed and not any(one["differing"] for one in find_texts(report).values()):
        return {}
    return try_ways(WAYS, tokens)


def try_ways(ways: Sequence[Way], tokens: int) -> dict[str, Any]:
    """Decode with `mini` in one process for each way.

    Returns:
      {name: {"right": whether texts of `ar` and of METHOD, each decoded twice, are those of `ar` on
      the processor; "flags"; "variables"; and "error", if the process failed}}.
    """
    with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:
        truth, *results = pool.map(lambda way: _decode(way, tokens), (TRUTH, *ways))
    expected = (truth.get("texts") or [None])[0]
    named = {}
    for way, result in zip((TRUTH, *ways), (truth, *results), strict=True):
        texts = result.pop("texts", [])
        right = bool(texts) and expected is not None and all(text == expected for text in texts)
        named[way.name] = {
            "right": right,
            "flags": list(way.flags),
            "variables": dict(way.variables),
        } | result
    return named


def render_causes(found: Mapping[str, Any]) -> str:
    """Say in a line each whether texts were right."""
    lines = []
    for name, one in found.items():
        verdict = (
            "right" if one["right"] else f"wrong{': ' + one['error'] if 'error' in one else ''}"
        )
        given = [f"XLA_FLAGS='{' '.join(one['flags'])}'"] if one["flags"] else []
        given += [f"{variable}={value}" for variable, value in one["variables"].items()]
        lines.append(f"texts {name}: {verdict}  {' '.join(given)}".rstrip())
    return "\n".join(lines)


def _decode(way: Way, tokens: int) -> dict[str, Any]:
    """Return `texts` of a process that runs this way, or its `error`."""
    flags = " ".join((os.environ.get("XLA_FLAGS", ""), *way.flags)).strip()
    environment = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    code = f"from jaxspec.bench.check.causes import print_texts; print_texts({tokens})"
    command = [sys.executable, "-c", code]
    how = dict(capture_output=True, text=True, timeout=TIMEOUT, check=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Programs are kept, as users' are, but none of another way is found.
            environment |= {"JAXSPEC_CACHE": folder} | dict(way.variables)
            done = subprocess.run(command, env=environment, **how)
        return {"texts": json.loads(done.stdout.splitlines()[-1])}
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT} s"}
    except (IndexError, ValueError):
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "flag" in line]
        return {"error": (lines or [f"exit status {done.returncode}"])[-1].strip()[:200]}


def print_texts(tokens: int) -> None:
    """Print the tokens of `ar` and of METHOD, each twice, as JSON: [[tokens per prompt] per call].

    The second call runs the same programs on other buffers.
    """
    params = jaxspec.load("mini", dtype="float32")
    prompts = read_prompts(DEMO_PROMPTS, load_tokenizer(params.spec.tokenizer))[:_PROMPTS]
    texts: list[Sequence[Sequence[int]]] = []
    for method in parse_methods(METHOD, budget=0):
        for _ in range(_REPEATS):
            options = method.options | {"max_new_tokens": tokens}
            texts.append(
                [
                    jaxspec.decode(params, prompt.content, **group_options(**options)).tokens
                    for prompt in prompts
                ]
            )
    print(json.dumps(texts))
