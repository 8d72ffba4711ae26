"""Serve with a target that several processes share: process 0 decides, the others follow.

Processes must run the same programs with the same arrays in the same order. Only process 0 takes
requests, and all that depends on them or on a clock is decided there: which requests run, how many
rounds, what rounds cost. Before it runs a program, it sends the program's name and arrays, packed
into packets of one size. The others do nothing but wait for packets and run what they say.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxspec.core.params import Params
from jaxspec.serve.on_device.programs import Programs

PULSE = 5.0
"""Seconds between packets of an engine without work: they keep waiting processes from giving up."""

# Packets without a program.
_REST, _STOP = "rest", "stop"

Broadcast = Callable[[np.ndarray], np.ndarray]
"""Takes int32 [P] in process 0 and anything of this shape elsewhere; returns process 0's."""


class Packets:
    """Programs with their arrays as packets: int32 [n, P], of which the first has a header.

    A packet holds a visit, which is what most of them are for. A prompt may need several.
    """

    def __init__(self, takes: Mapping[str, Sequence[tuple[int, ...]]]):
        """Make it.

        Args:
          takes: shapes of the arrays of every program, see `Programs.takes`.
        """
        self._takes = {_STOP: (), _REST: (), **takes}
        self._names = tuple(self._takes)
        self.size = 1 + self._count_words("visit")

    def pack(self, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Pack a program and its arrays."""
        assert [array.shape for array in arrays] == list(self._takes[name]), name
        assert all(array.dtype == np.int32 for array in arrays), name
        header = np.asarray([self._names.index(name)], np.int32)
        words = np.concatenate([header, *(array.reshape(-1) for array in arrays)])
        packets = np.zeros((self.count(words), self.size), np.int32)
        packets.reshape(-1)[: len(words)] = words
        return packets

    def count(self, first: np.ndarray) -> int:
        """Count the packets of which `first` int32 [P] is the first."""
        return math.ceil((1 + self._count_words(self._names[first[0]])) / self.size)

    def unpack(self, packets: np.ndarray) -> tuple[str, list[np.ndarray]]:
        """Return what `pack` was given."""
        words = packets.reshape(-1)
        name, arrays, begin = self._names[words[0]], [], 1
        for shape in self._takes[name]:
            end = begin + math.prod(shape)
            arrays.append(words[begin:end].reshape(shape))
            begin = end
        return name, arrays

    def _count_words(self, name: str) -> int:
        return sum(map(math.prod, self._takes[name]))


class Followers:
    """The other processes, as process 0 sees them."""

    def __init__(
        self,
        takes: Mapping[str, Sequence[tuple[int, ...]]],
        broadcast: Broadcast = multihost_utils.broadcast_one_to_all,
    ):
        self._packets, self._broadcast = Packets(takes), broadcast

    def tell(self, name: str, arrays: Sequence[np.ndarray]) -> None:
        """Let them run a program. The caller runs it next."""
        for packet in self._packets.pack(name, arrays):
            self._broadcast(packet)

    def rest(self) -> None:
        """Let them wait on."""
        self.tell(_REST, ())

    def stop(self) -> None:
        """Let them end."""
        self.tell(_STOP, ())


def follow(programs: Programs, broadcast: Broadcast = multihost_utils.broadcast_one_to_all) -> None:
    """Run the programs that process 0 runs, until it stops.

    Args:
      programs: of an engine that was made with the same options as that of process 0.
    """
    packets = Packets(programs.takes)
    nothing = np.zeros(packets.size, np.int32)
    while True:
        first = np.asarray(broadcast(nothing))
        rest = [broadcast(nothing) for _ in range(packets.count(first) - 1)]
        name, arrays = packets.unpack(np.stack([first, *rest]))
        if name == _STOP:
            return
        if name != _REST:
            programs.run(name, *arrays)


def check_processes(params: Params, *described: object) -> None:
    """Refuse to serve in several processes that could not run the same programs.

    Args:
      params: the model.
      described: all else that programs depend on; only their `repr` counts.

    Raises:
      ValueError: not all devices share the target, or the processes differ in the model or the
        options. All processes raise it.
    """
    if jax.process_count() == 1:
        return
    devices, shared = jax.device_count(), 1 if params.layout is None else params.layout.devices
    if shared != devices:
        raise ValueError(
            f"{jax.process_count()} processes serve one target that all {devices} devices share, "
            f"and {shared} have it: load it with mesh=jax.make_mesh(({devices},), ('model',))"
        )
    weights = jax.tree.leaves((params.target, params.drafters))
    leaves = [(leaf.shape, str(leaf.dtype)) for leaf in weights]
    compared = params.spec.target, params.spec.drafters, leaves, *described
    digest = hashlib.sha256(repr(compared).encode()).digest()
    found = multihost_utils.process_allgather(np.frombuffer(digest, np.int32))
    if (found != found[0]).any():
        raise ValueError(
            "the processes have different models or options: start the same command in each, "
            "except for --process-id"
        )
