"""Compile in threads, so that Ctrl-C need not wait, and let the interpreter end all the same.

A compilation cannot be cancelled. If the interpreter ended while a thread is inside one, JAX would
clear its clients, and Python its state, under the compiler: the process would crash. And executors
of `concurrent.futures` do not wait once Ctrl-C came: until Python 3.12, a `Thread.join` that is
interrupted takes the thread for ended.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from jaxspec.core.runtime.jax_settings import own_settings

T = TypeVar("T")

# XLA compiles a program mostly on one core. A call compiles two at the same time, on any machine.
THREADS = max(2, min(os.cpu_count() or 1, 4))
# Seconds that the interpreter's end waits without a word.
_QUIET = 1.0

_waiting: queue.SimpleQueue[tuple[concurrent.futures.Future, Callable[[], Any]]] = (
    queue.SimpleQueue()
)
_unfinished: set[concurrent.futures.Future] = set()
_threads: list[threading.Thread] = []
_starting = threading.Lock()


def compile_in_background(function: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Call a function that compiles in one of `THREADS` threads; those asked for first come first.

    Whoever waits for the result, in `Future.result` or `concurrent.futures.wait`, can be
    interrupted; the compilation goes on. At the interpreter's end, functions that have not begun
    are dropped, and the end waits for the others. After Ctrl-C it does not wait: the process then
    ends at once.

    Args:
      function: must not wait for another one that is called so.

    Returns:
      The function's result, or what it raised.
    """
    _settle_at_exit()
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    _unfinished.add(future)
    future.add_done_callback(_unfinished.discard)
    _waiting.put((future, function))
    with _starting:
        if len(_threads) < THREADS:
            _threads.append(threading.Thread(target=_work, name="jaxspec-compile", daemon=True))
            _threads[-1].start()
    return future


def is_compiling() -> bool:
    """Whether the interpreter must not end now, see `compile_in_background`."""
    return any(one.running() for one in list(_unfinished))


def _work() -> None:
    while True:
        future, function = _waiting.get()
        if not future.set_running_or_notify_cancel():
            continue
        try:
            with own_settings():  # those of JAX are a thread's own
                future.set_result(function())
        except BaseException as error:  # `result` raises it where somebody waits
            future.set_exception(error)
        del future, function  # they may hold arrays, and the next one may be far


@functools.cache
def _settle_at_exit() -> None:
    # What is registered later is called earlier, and JAX has registered what clears its clients.
    atexit.register(_settle)


def _settle() -> None:
    """Let threads leave the compiler, or the process end without them."""
    try:  # around all of it: what an interrupt raises here, Python would print and go on
        running = [one for one in list(_unfinished) if not one.cancel()]
        if not running:
            return
        # Python notes what ended a program here; at a prompt, an exception ends nothing.
        if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
            raise KeyboardInterrupt
        if concurrent.futures.wait(running, _QUIET).not_done:
            print("waiting until XLA has compiled; Ctrl-C ends at once", file=sys.stderr)
            concurrent.futures.wait(running)
    except KeyboardInterrupt:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # Python, too, ends by this signal after Ctrl-C; shells show status 130.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
