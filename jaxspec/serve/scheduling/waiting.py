"""The queue between the threads that submit requests and the one that visits the device."""

from __future__ import annotations

import collections
import itertools
import math
import threading

from jaxspec.serve.requests import QueueFull
from jaxspec.serve.scheduling.tasks import Task

# Weight of the newest request in the mean time that a request holds a slot.
_NEW = 0.1


class WaitingQueue:
    """Requests in the order of their arrival, and the ids to cancel. All methods are thread-safe."""

    def __init__(self, size: int, slots: int):
        self._size, self._slots = size, slots
        self._lock = threading.Lock()
        self._tasks: collections.deque[Task] = collections.deque()
        self._cancelled: set[int] = set()
        self._ids = itertools.count()
        self._seconds = 1.0

    def __len__(self) -> int:
        return len(self._tasks)

    def new_id(self) -> int:
        """Return an id that no request has."""
        return next(self._ids)

    def put(self, task: Task) -> None:
        """Add a request.

        Raises:
          QueueFull: as many requests wait as may.
        """
        with self._lock:
            if len(self._tasks) >= self._size:
                turns = 1 + len(self._tasks) / self._slots
                raise QueueFull(max(1.0, math.ceil(self._seconds * turns)))
            self._tasks.append(task)

    def cancel(self, id: int) -> None:
        """Mark a request as cancelled."""
        with self._lock:
            self._cancelled.add(id)

    def take_cancelled(self) -> set[int]:
        """Return the ids that were cancelled since the last call."""
        with self._lock:
            found, self._cancelled = self._cancelled, set()
            return found

    def take(self) -> Task | None:
        """Take the request that has waited longest."""
        with self._lock:
            return self._tasks.popleft() if self._tasks else None

    def drop(self, unwanted: set[int]) -> list[Task]:
        """Take the requests with ids in `unwanted` out of the queue."""
        with self._lock:
            dropped = [task for task in self._tasks if task.id in unwanted]
            if dropped:
                self._tasks = collections.deque(t for t in self._tasks if t.id not in unwanted)
            return dropped

    def late(self, now: float) -> list[Task]:
        """Return the waiting requests whose deadline has passed."""
        with self._lock:
            return [task for task in self._tasks if task.is_late(now)]

    def observe(self, seconds: float) -> None:
        """Learn how long a request held its slot."""
        with self._lock:
            self._seconds += _NEW * (seconds - self._seconds)
