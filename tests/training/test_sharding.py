"""Data-parallel and fully sharded runs against one device, on eight virtual devices and with two
processes.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.core.runtime.processes import HostOptions, connect
from training.run import sharding

SCRIPT = Path(__file__).with_name("sharded_run.py")
ROOT = SCRIPT.parents[2]


def launch(request, devices):
    """A process that sees `devices` host devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), json.dumps(request, default=str)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*processes, seconds=300):
    try:
        for process in processes:
            output, _ = process.communicate(timeout=seconds)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in processes:
            process.kill()


def losses(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def assert_like(out, name, reference, tolerance=1e-5):
    found, expected = (dict(np.load(out / f"{each}.npz")) for each in (name, reference))
    for leaf in set(expected) - {"share"}:
        np.testing.assert_allclose(
            found[leaf], expected[leaf], atol=tolerance, rtol=0, err_msg=f"{name}: {leaf}"
        )
    np.testing.assert_allclose(losses(out / name), losses(out / reference), rtol=1e-5)


MESHES = {
    "one": {"data": 1, "parts": 1},
    "data": {"data": 8, "parts": 2},
    "fsdp": {"fsdp": 8, "parts": 1},
    "both": {"data": 2, "fsdp": 4, "parts": 2, "shard_frozen": True},
}
SHARES = {"one": 1, "data": 1, "fsdp": 1 / 8, "both": 1 / 4}


@pytest.mark.slow
@pytest.mark.parametrize("names", slow_except(["both"], ["both", "data fsdp"]))
def test_eight_devices_give_the_weights_of_one(tmp_path, names):
    chosen = ["one", *names.split()]
    runs = [{"name": name, **MESHES[name]} for name in chosen]
    finish(launch({"out": tmp_path, "runs": runs}, devices=8))
    for name in chosen:
        assert_like(tmp_path, name, "one")
        assert float(np.load(tmp_path / f"{name}.npz")["share"]) == SHARES[name]


@pytest.mark.slow
def test_a_run_moves_from_eight_devices_to_one(tmp_path):
    moved = [
        {"name": "moved", "data": 2, "fsdp": 4, "stop_after": 10, "parts": 1},
        {"name": "moved", "parts": 1},
    ]
    finish(launch({"out": tmp_path, "runs": [{"name": "one", "parts": 1}, *moved]}, devices=8))
    assert_like(tmp_path, "moved", "one")


@pytest.mark.slow
def test_muon_on_eight_devices(tmp_path):
    runs = [{"name": "one"}, {"name": "fsdp", "fsdp": 8, "parts": 1}]
    finish(
        launch({"out": tmp_path, "runs": [{"optimizer": "muon", **run} for run in runs]}, devices=8)
    )
    assert_like(tmp_path, "fsdp", "one", tolerance=1e-4)


def run_two(tmp_path, run):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    requests = [
        {
            "out": tmp_path,
            "runs": [run],
            "hosts": {"coordinator": address, "process_id": number, "processes": 2},
        }
        for number in range(2)
    ]
    finish(*[launch(request, devices=2) for request in requests])


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one_and_resume(tmp_path):
    finish(launch({"out": tmp_path, "runs": [{"name": "one", "parts": 1}]}, devices=1))
    two = {"name": "two", "data": 2, "fsdp": 2, "parts": 2, "shard_frozen": True}
    run_two(tmp_path, two)
    assert_like(tmp_path, "two", "one")
    run_two(tmp_path, two | {"name": "resumed", "stop_after": 10})
    run_two(tmp_path, two | {"name": "resumed"})
    assert_like(tmp_path, "resumed", "two", tolerance=0)


def test_shardings_depend_on_the_shape_alone():
    mesh = jax.sharding.AbstractMesh((1, 4), sharding.AXES)
    shapes = {"wide": (8, 256), "tall": (512, 8), "odd": (33, 37), "small": (8, 8), "count": ()}
    found = sharding.fully_sharded(
        mesh, {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    )
    specs = {name: tuple(place.spec) for name, place in found.items()}
    assert specs == {"wide": (None, "fsdp"), "tall": ("fsdp",), "odd": (), "small": (), "count": ()}


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="data 64 x fsdp 1 devices asked for, .* found"):
        sharding.make_mesh(64, 1)
    with pytest.raises(ValueError, match="need all of coordinator"):
        connect(HostOptions(process_id=0))
    with pytest.raises(ValueError, match="process_id 2 must be at least 0 and below processes 2"):
        connect(HostOptions("localhost:1", 2, 2))
    connect(HostOptions())
