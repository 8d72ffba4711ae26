"""Run a script of this folder in a process with several virtual CPU devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def run_on_devices(
    devices: int, script: str, request: Any, seconds: float = 600, **variables: str
) -> str:
    """Run `python SCRIPT REQUEST`, the request as JSON: what it prints.

    Args:
      seconds: to wait for its end.
      variables: of its environment.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = os.pathsep.join(str(path) for path in (FOLDER.parents[1], FOLDER))
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), json.dumps(request)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
