"""Compiling in the background: the interpreter ends whatever threads do."""

import signal
import subprocess
import sys
import threading

import pytest

from jaxspec.core.runtime import background

# A sleep stands for XLA. The module is loaded alone, because JAX takes long to import.
SCRIPT = """
import concurrent.futures, importlib.util, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
spec = importlib.util.spec_from_file_location("background", {path!r})
background = importlib.util.module_from_spec(spec)
spec.loader.exec_module(background)
begun = threading.Event()

def compile():
    begun.set()
    time.sleep({seconds})
    print("compiled", flush=True)

first = background.compile_in_background(compile)
for _ in range(background.THREADS + 2):
    background.compile_in_background(lambda: time.sleep({seconds}))
begun.wait()
try:
    print("begun", flush=True)
    {last}
except KeyboardInterrupt:
    if not {goes_on}:
        raise
    print("interrupted", flush=True)
    time.sleep({seconds})
"""


def start(last: str, seconds: float = 60.0, goes_on: bool = False) -> subprocess.Popen:
    """Start a script that compiles in the background, and wait until it has begun to."""
    path = background.__file__
    script = SCRIPT.format(path=path, last=last, seconds=seconds, goes_on=goes_on)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("sys.exit(3)", 3),
        pytest.param("", 0, marks=pytest.mark.thorough),
        pytest.param("raise ValueError", 1, marks=pytest.mark.thorough),
    ],
)
def test_the_end_waits_for_what_has_begun_and_keeps_the_status(last, status):
    shown, _ = (process := start(last, seconds=0.3)).communicate(timeout=50)
    assert process.returncode == status and shown == "compiled\n"


@pytest.mark.parametrize(
    "last",
    [
        "first.result()",
        "sys.exit(0)",
        pytest.param("concurrent.futures.wait([first])", marks=pytest.mark.thorough),
        pytest.param("time.sleep(60)", marks=pytest.mark.thorough),
    ],
)
def test_an_interrupt_ends_the_process_at_once(last):
    process = start(last)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=50)
    assert process.returncode == -signal.SIGINT


def test_a_program_may_go_on_after_an_interrupt():
    process = start("first.result()", goes_on=True)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=50)
    assert process.returncode == -signal.SIGINT


def test_functions_run_in_order_and_raise_where_somebody_waits():
    order, go = [], threading.Event()
    held = [background.compile_in_background(go.wait) for _ in range(background.THREADS - 1)]
    made = [background.compile_in_background(lambda n=n: order.append(n) or n) for n in range(5)]
    assert [one.result(20) for one in made] == order == [*range(5)]
    assert background.is_compiling()
    go.set()
    assert all(one.result(20) for one in held)
    with pytest.raises(ZeroDivisionError):
        background.compile_in_background(lambda: 1 // 0).result(20)
    assert not background.is_compiling()


def test_a_function_that_is_cancelled_never_runs():
    go = threading.Event()
    held = [background.compile_in_background(go.wait) for _ in range(background.THREADS)]
    ran = []
    late = background.compile_in_background(lambda: ran.append(1))
    assert late.cancel()
    go.set()
    assert all(one.result(20) for one in held)
    background.compile_in_background(lambda: None).result(20)
    assert not ran
