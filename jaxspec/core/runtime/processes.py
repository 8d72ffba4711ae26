"""Join the processes of a run on several hosts.

All run the same command and compute the same decisions, each for its own devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Iterator

import jax

from jaxspec.core.runtime import interrupts


@dataclasses.dataclass
class HostOptions:
    """The processes of a run on several hosts. All run the same command, except for `process_id`.

    Attributes:
      coordinator: host:port of process 0, or `auto` if JAX can ask the cluster (SLURM, Cloud TPU);
        None for one process.
      process_id: number of this process, from 0.
      processes: number of processes.
    """

    coordinator: str | None = None
    process_id: int | None = None
    processes: int | None = None


def connect(hosts: HostOptions, silence: int = 100) -> None:
    """Join the other processes, before anything else that uses JAX; do nothing for one process.

    If a process ends without notice, JAX ends the others with an error or a signal.

    Args:
      hosts: the processes.
      silence: seconds without an answer after which a process counts as ended.

    Raises:
      ValueError: only some of the options are given, they contradict each other, or there is no
        cluster to ask.
    """
    given = (hosts.coordinator, hosts.process_id, hosts.processes)
    if given == (None, None, None):
        return
    if hosts.coordinator == "auto":
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=silence)
        except ValueError as error:
            raise ValueError(
                f"JAX found no cluster for coordinator=auto ({error}): "
                "give coordinator as host:port, with process_id and processes"
            ) from None
        return
    if hosts.coordinator is None or hosts.process_id is None or hosts.processes is None:
        raise ValueError(
            "several processes need all of coordinator (host:port of process 0, or auto), "
            "process_id and processes"
        )
    if not 0 <= hosts.process_id < hosts.processes:
        raise ValueError(
            f"process_id {hosts.process_id} must be at least 0 "
            f"and below processes {hosts.processes}"
        )
    jax.distributed.initialize(
        hosts.coordinator,
        hosts.processes,
        hosts.process_id,
        heartbeat_timeout_seconds=silence,
    )


@contextlib.contextmanager
def end_together() -> Iterator[None]:
    """Make a context in which an error ends this process at once, with status 1, Ctrl-C with 130.

    At an ordinary exit JAX waits for the other processes, which may wait for this one. When it is
    gone, they end too.
    """
    try:
        yield
    except KeyboardInterrupt:
        interrupts.leave(interrupts.STATUS)
    except BaseException as error:
        if isinstance(error, ValueError | OSError | ImportError):  # a mistake of the user's
            print(f"jaxspec: error: {' '.join(str(error).split())}", file=sys.stderr)
        else:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
