"""Run steps of `jaxspec check --tp` in small: their report, and what ran on how many devices.

python sharded_check.py '{"devices": 2, "json": "check.json", "steps": ["rounds: ar"]}'

Without `mini`, texts are those of a tiny random target.
"""

import collections
import dataclasses
import functools
import json
import sys

import jax
from sharded_toys import make_params

import jaxspec
from jaxspec.bench.check import lossless, plan_check
from jaxspec.bench.check.run_steps import run_steps
from jaxspec.bench.check.shared_target import describe_own, share
from jaxspec.bench.latency import cell
from jaxspec.bench.measure.methods import Method
from jaxspec.cli.main import main

PROMPTS = [[4, 9, 2, 14, 4, 9], [7]]
SMALL = {"context": 20, "rounds": 2, "tokens": 6, "prefills": ((20,), (90, 5))}


MEASURES = ("rounds", "stream", "prefills", "verification")


def count_devices(function, calls):
    """Count the calls of a function of a model by the number of devices that share it."""

    def counted(params, *args, **options):
        calls[1 if params.layout is None else params.layout.devices] += 1
        return function(params, *args, **options)

    return counted


def watch():
    """Count the devices of all that a check measures: {name: {devices: calls}}."""
    counts = collections.defaultdict(collections.Counter)
    jaxspec.decode = count_devices(jaxspec.decode, counts["decode"])
    for name in MEASURES:
        function = getattr(plan_check, f"measure_{name}")
        setattr(plan_check, f"measure_{name}", count_devices(function, counts[name]))
    plan_check.profile_rounds = count_devices(plan_check.profile_rounds, counts["profile"])
    return counts


def compare_toys(tokens, mesh):
    """Compare texts of a tiny target with those of a method, greedy and sampled."""
    tree = Method("dflash", {"drafter": "dflash", "budget": 4})
    return lossless.compare_texts(make_params("qwen3", ("dflash",)), PROMPTS, [tree], tokens, mesh)


def compare_mini(tokens, mesh):
    """Compare texts of the small target that ships with those of one method."""
    tree = Method("tree", {"drafter": "jetspec", "builder": "best_first", "budget": 8})
    return lossless.check_lossless(tokens, [tree], mesh)


def describe_share(devices):
    """What one device has of the tiny target: the shape of a product, query heads and kv heads."""
    mesh = jax.make_mesh((devices,), ("model",))
    own = describe_own(share(make_params("qwen3"), mesh))
    product = own.target["params"]["layers_0"]["attention"]["qkv"]["kernel"]
    return [*product.shape, own.spec.target.num_heads, own.spec.target.num_kv_heads]


def run_some(names, steps, *rest):
    """Run the steps of these names; all of them without names."""
    return run_steps([step for step in steps if not names or step.name in names], *rest)


def shrink(request):
    """Make the steps of a check small, and leave some out."""
    plan_check.CPU = dataclasses.replace(plan_check.CPU, **SMALL)
    plan_check.SETTINGS = plan_check.SETTINGS[:2]
    plan_check.CEILING_SIZES = {"cpu": (1, 64)}
    plan_check.check_lossless = compare_mini if request.get("mini") else compare_toys
    plan_check.run_steps = functools.partial(run_some, request.get("steps"))
    lossless.TEMPERATURES = request.get("temperatures", lossless.TEMPERATURES)
    cell.TIMES["cpu"] = (2, 3, 4)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    shrink(request)
    counts = watch()
    options = ("--tp", str(request["devices"]), "--json", request["json"], "--minutes", "30")
    status = main(["check", *options])
    print(json.dumps(counts | {"own": describe_share(request["devices"])}))
    sys.exit(status)
