"""End a command soon after Ctrl-C, whatever its threads and compiled programs do.

Python handles a signal in the main thread, between two steps of its own: not while that thread is in
XLA. It may also lose the KeyboardInterrupt: JAX has a callback in the collector of garbage, which is
often the first thing that runs when the main thread comes back, and Python ignores what is raised
there. So a thread hears of each Ctrl-C too, and ends the process if the main thread does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# Of a process that Ctrl-C ended, as shells show it.
STATUS = 130
# The package whose modules are commands, with `python -m`, and what is installed as a command.
_NAME = "jaxspec"
# Seconds for what `finally` and `with` clean up, and then for what `_clean_up` does.
GRACE, LAST = 1.0, 0.4
# What the thread hears besides numbers of signals: the command goes on; Python lost an exception.
_GOES_ON, _LOST = b"\x00", b"\xff"

_thread_hears: socket.socket | None = None
_partial: set[Path] = set()
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
    return name.split(".")[0] == _NAME or Path(first).stem == _NAME


def watch() -> None:
    """Make Ctrl-C end this process within about two seconds, with `STATUS`; a second one at once.

    The main thread gets a KeyboardInterrupt as usual. Whoever sets a handler of SIGINT decides
    alone. Where SIGINT is ignored, it stays so.
    """
    global _thread_hears
    in_main = threading.current_thread() is threading.main_thread()
    if _thread_hears or not in_main or signal.getsignal(signal.SIGINT) is not _PYTHONS:
        return
    hears, _thread_hears = socket.socketpair()
    _thread_hears.setblocking(False)
    threading.Thread(target=_listen, args=(hears,), name="jaxspec-ctrl-c", daemon=True).start()
    signal.set_wakeup_fd(_thread_hears.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _interrupt)
    # A child that is forked would tell this process of its own signals.
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
def partial_file(path: Path) -> Iterator[Path]:
    """Remove a file or folder if the body does not come to its end, even if the process ends in it.

    Args:
      path: what the body writes, and renames when it is complete.
    """
    _partial.add(path)
    try:
        yield path
    except BaseException:
        _remove(path)
        raise
    finally:
        _partial.discard(path)


def leave(status: int) -> NoReturn:
    """End the process without Python's own end, which waits for threads and clears what they use."""
    last = threading.Thread(target=_clean_up, daemon=True)
    last.start()
    last.join(LAST)  # whoever reads the output may have stopped, and the main thread hold its lock
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


_PYTHONS = signal.default_int_handler


def _listen(hears: socket.socket) -> None:
    """End the process if it is still there `GRACE` after an interrupt, or at a second one."""
    asked, end, sent = False, None, 0
    while True:
        hears.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
        try:
            heard = hears.recv(64)
        except TimeoutError:
            if not _patient:
                _end()
            say("stopping soon; Ctrl-C again ends jaxspec")
            heard, end = b"", None
        for one in heard:
            if one == _GOES_ON[0]:
                asked, end = False, None
            elif one == _LOST[0]:
                time.sleep(0.02)  # until the callback has returned that lost it
                sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
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


def _clean_up() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    for path in list(_partial):
        _remove(path)
    import gc
    import tempfile

    for one in gc.get_objects():
        if type(one) is tempfile.TemporaryDirectory:
            with contextlib.suppress(Exception):
                one.cleanup()


def _remove(path: Path) -> None:
    import shutil

    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _tell(what: bytes) -> None:
    if _thread_hears:
        with contextlib.suppress(OSError):
            _thread_hears.send(what)


def _show_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        leave(STATUS)
    sys.__excepthook__(kind, error, trace)


def _show_unraisable(found: Any) -> None:
    if issubclass(found.exc_type, KeyboardInterrupt):
        _tell(_LOST)
    else:
        sys.__unraisablehook__(found)
