"""Run a `jaxspec` command in two processes with four devices each, as on two hosts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def find_port():
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start_two(*command, outputs=(subprocess.PIPE, subprocess.PIPE), errors=subprocess.PIPE):
    """Start `jaxspec` with `command` in two processes, of which eight devices share the target."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    hosts = ["--coordinator", f"localhost:{find_port()}", "--processes", "2", "--process-id"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "jaxspec", *command, "--tp", "8", *hosts, str(number)],
            env=environment,
            stdout=outputs[number],
            stderr=errors,
            text=True,
        )
        for number in range(2)
    ]
