"""Make the first call of a process and print what it took, as JSON.

`measure_first_calls` runs it in processes of their own, with empty folders for compiled programs
and for the costs of rounds.
"""

from __future__ import annotations

import json
import sys
import time

import jax

import jaxspec
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.bench.report.summary import describe_environment
from jaxspec.call.options import group_options
from jaxspec.core.runtime.compilations import compilations, compile_seconds


def main() -> None:
    """Decode twice with the method that the arguments describe, as JSON."""
    given = json.loads(sys.argv[1])
    params = jaxspec.load(given["model"], drafter=given["drafter"], progress=False)
    method = parse_methods(given["method"], budget=4, spec=params.spec)[-1]
    call = {"max_new_tokens": given["max_new_tokens"], "ignore_eos": True} | method.options
    # Any tokens will do: what is compiled depends on their number alone.
    prompt = [(7 * i) % 500 + 20 for i in range(given["prompt_tokens"])]
    jax.block_until_ready((params.target, params.drafters))
    taken = []
    compilations()
    for _ in range(2):
        began, compiled = time.perf_counter(), compile_seconds()
        jaxspec.decode(params, prompt, **group_options(**call))
        taken.append((time.perf_counter() - began, compile_seconds() - compiled))
    first, second = taken
    report = {
        "method": method.name,
        "seconds": first[0],
        "compile_seconds": first[1],
        "repeated_seconds": second[0],
        **describe_environment(params),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
