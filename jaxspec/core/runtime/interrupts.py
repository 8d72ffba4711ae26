"""End a command soon after Ctrl-C, whatever its threads and compiled programs do.

Python handles a signal in the main thread, between two steps of its own: not while that thread is
in XLA. It may also lose the KeyboardInterrupt: JAX has a callback in the collector of garbage,
which is often the first thing that runs when the main thread comes back, and Python ignores what is
raised there. So a thread hears of each Ctrl-C too, and ends the process if the main thread does
not.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

# Of a process that Ctrl-C ended, as shells show it.
STATUS = 130
# The package whose modules are commands, with `python -m`, and what is installed as a command.
_NAME = "jaxspec"
# Seconds for what `finally` and `with` clean up, and then for what `leave` does.
GRACE, LAST = 1.0, 0.4
# What the thread hears besides numbers of signals: the command goes on; Python lost an exception.
_GOES_ON, _LOST = b"\x00", b"\xff"

_to_thread: int | None = None  # a pipe to it
_partial: set[str] = set()
_patient = False


def is_command() -> bool:
    """Whether this process is a command of this project's, and not a program that imports it.

    It is known before the command's own module is imported, which takes seconds.
    """
    first = sys.argv[0] if sys.argv else ""
    if first == "-m":  # Python imports the packages of the module
        name = sys.orig_argv[len(sys.orig_argv) - len(sys.argv)].removeprefix("-m")
    else:
        found = getattr(sys.modules.get("__main__"), "__spec__", None)
        name = found.name if found else ""
    program, _ = os.path.splitext(os.path.basename(first))
    return _NAME in (name.split(".")[0], program)


def watch() -> None:
    """Make Ctrl-C end this process within about two seconds, with `STATUS`; a second one at once.

    The main thread gets a KeyboardInterrupt as usual. Whoever sets a handler of SIGINT decides
    alone. Where SIGINT is ignored, it stays so.
    """
    global _to_thread
    in_main = threading.current_thread() is threading.main_thread()
    if _to_thread is not None or not in_main or os.name == "nt":
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    heard, _to_thread = os.pipe()
    os.set_blocking(_to_thread, False)
    arguments = heard, threading.get_ident()
    threading.Thread(target=_listen, args=arguments, name="jaxspec-ctrl-c", daemon=True).start()
    signal.set_wakeup_fd(_to_thread, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _interrupt)
    # A forked child would tell this process of its own signals.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    sys.excepthook, sys.unraisablehook = _show_error, _show_unraisable


@contextlib.contextmanager
def stopping_the_body_alone() -> Iterator[None]:
    """Let an interrupt end the body, and not the command, even if it takes longer.

    A second one ends the process at once.
    """
    global _patient
    _patient = True
    try:
        yield
    finally:
        _patient = False
        goes_on()


def goes_on() -> None:
    """Say that the command has dealt with the interrupt, and goes on."""
    _tell(_GOES_ON)


@contextlib.contextmanager
def partial_file(path: str | os.PathLike) -> Iterator[None]:
    """Remove a file or folder if the process ends in the body, as `leave` ends it.

    Args:
      path: what the body writes, and renames when it is complete; it removes it after an error.
    """
    _partial.add(os.fspath(path))
    try:
        yield
    finally:
        _partial.discard(os.fspath(path))


def leave(status: int) -> NoReturn:
    """End the process without Python's own end, which waits for threads and clears what they use."""
    if status == STATUS:
        _end_children()  # they hear of a Ctrl-C in a terminal only
    # Whoever reads the output may have stopped, and the main thread may hold its lock.
    last = [threading.Thread(target=one, daemon=True) for one in (_flush, _remove_temporary)]
    for one in last:
        one.start()
    for one in last:
        one.join(LAST)
    os._exit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # It differs from Python's, which asyncio would replace by one that waits for its tasks.
    if not _is_importing(frame):
        raise KeyboardInterrupt
    # An exception while a library in C++ is imported may crash the process.
    if not _patient:
        leave(STATUS)
    _tell(_LOST)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _listen(pipe: int, main: int) -> None:
    """End the process if it is still there `GRACE` after an interrupt, or at a second one."""
    asked, end, sent = False, None, 0
    while True:
        left = None if end is None else max(end - time.monotonic(), 0)
        if not select.select([pipe], [], [], left)[0]:
            if not _patient:
                _end()
            say("stopping soon; Ctrl-C again ends jaxspec")
            end = None
            continue
        for one in os.read(pipe, 64):
            if one == _GOES_ON[0]:
                asked, end = False, None
            elif one == _LOST[0]:
                time.sleep(0.02)  # until the callback has returned that lost it
                sent += 1
                signal.pthread_kill(main, signal.SIGINT)
            elif one == signal.SIGINT and sent:
                sent -= 1  # this thread's own
            elif one == signal.SIGINT and signal.getsignal(signal.SIGINT) is _interrupt:
                if asked:
                    _end()
                asked, end = True, time.monotonic() + GRACE


def _end() -> NoReturn:
    say("jaxspec: interrupted")
    leave(STATUS)


def say(text: str) -> None:
    """Print a line to standard error, from a handler or a thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())  # the main thread may hold the lock of sys.stderr


def _end_children() -> None:
    """End the processes that threads of this one have started, where the system lists them."""
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGTERM)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _remove_temporary() -> None:
    import gc
    import shutil
    import tempfile

    for path in list(_partial):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    for one in gc.get_objects():
        if type(one) is tempfile.TemporaryDirectory:
            with contextlib.suppress(Exception):
                one.cleanup()


def _tell(what: bytes) -> None:
    if _to_thread is not None:
        with contextlib.suppress(OSError):
            os.write(_to_thread, what)


def _show_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        leave(STATUS)
    sys.__excepthook__(kind, error, trace)


def _show_unraisable(found: Any) -> None:
    if issubclass(found.exc_type, KeyboardInterrupt):
        _tell(_LOST)
    else:
        sys.__unraisablehook__(found)
