"""Ctrl-C ends a command, whatever it does.

`python tests/cli/test_interrupts.py MODEL TRIES SECONDS` interrupts first calls at random moments
of so many seconds, and prints how each ended.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest

from jaxspec.core.runtime import interrupts

# The latter two before this project's first line, while Python starts.
ENDED = (interrupts.STATUS, -signal.SIGINT, 1)
# Background jobs of shells ignore SIGINT, and so do their children.
LISTEN = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
# The module is loaded alone, because JAX takes long to import. `block` is as deaf as a compiler.
SCRIPT = f"""
import asyncio, contextlib, ctypes, gc, importlib.util, pathlib, signal, sys, tempfile, time
spec = importlib.util.spec_from_file_location("interrupts", {interrupts.__file__!r})
interrupts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(interrupts)
mutex = ctypes.create_string_buffer(64)

def block():
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

interrupts.watch()
"""
GENERATE = ("generate", "--raw", "--prompt", "hi", "--max-new-tokens", "1900")


@contextlib.contextmanager
def started(*arguments, **environment):
    """A process of Python; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": ""} | environment,
        text=True,
        bufsize=0,  # `wait_for` must not read ahead
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(text, pipe):
    """Read lines until one holds a text."""
    line = ""
    while not (text in line and line.endswith("\n")):
        assert (one := os.read(pipe.fileno(), 1).decode(errors="replace")), f"no {text!r}"
        line = one if line.endswith("\n") else line + one


def interrupt(process, timeout=60.0):
    """Send Ctrl-C; wait for the end: its status, seconds, and what was printed."""
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=timeout)
    seconds = time.perf_counter() - began
    return types.SimpleNamespace(
        status=process.returncode, seconds=seconds, shown=shown, errors=errors
    )


def end_script(body, twice=False, **environment):
    """Run SCRIPT and a body that prints a line when Ctrl-C may come."""
    with started("-c", SCRIPT + body, **environment) as process:
        wait_for("begun", process.stdout)
        time.sleep(0.2)  # until it does what follows
        if twice:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        return interrupt(process)


def test_a_main_thread_in_a_library_is_left_behind(tmp_path):
    """What it printed is shown, and what is temporary is removed."""
    kept = tmp_path / "kept"
    kept.write_text("whole")
    ended = end_script(f"""
folder = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})
partial = pathlib.Path({str(tmp_path)!r}, "partial")
with interrupts.partial_file(partial):
    partial.mkdir()
    (partial / "half").write_text("ha")
    print("begun\\nsh", end="", flush=True)
    print("own", end="")
    block()
""")
    assert ended.status == interrupts.STATUS and ended.shown == "shown"
    assert ended.errors.strip() == "jaxspec: interrupted"
    assert [*tmp_path.iterdir()] == [kept]


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        "asyncio.run(asyncio.sleep(60))",
        "import threading; threading.Thread(target=time.sleep, args=(60,)).start()",
    ],
)
def test_a_main_thread_in_python_ends_without_a_word(body):
    ended = end_script(f"print('begun', flush=True); {body}; time.sleep(60)")
    assert (ended.status, ended.shown, ended.errors) == (interrupts.STATUS, "", "")


def test_an_interrupt_that_python_loses_comes_again():
    """As in JAX's callback of the collector of garbage, whose errors Python ignores."""
    ended = end_script("""
interrupts.GRACE = 60
def collect(phase, about):
    if phase == "stop":
        gc.callbacks.remove(collect)
        print("begun", flush=True)
        time.sleep(60)
gc.callbacks.append(collect)
gc.collect()
time.sleep(60)
""")
    assert (ended.status, ended.errors) == (interrupts.STATUS, "")


def test_a_second_interrupt_ends_at_once():
    ended = end_script("interrupts.GRACE = 60; print('begun', flush=True); block()", twice=True)
    assert ended.status == interrupts.STATUS


def test_an_output_that_nobody_reads_does_not_keep_the_process():
    ended = end_script("print('begun', flush=True); print('x' * 10**6)")
    assert ended.status == interrupts.STATUS


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system lists no children")
def test_processes_that_threads_started_end_too():
    """They hold the output open, as long as they live."""
    ended = end_script("""
import subprocess, threading
command = [sys.executable, "-c", "import time; time.sleep(60)"]
threading.Thread(target=subprocess.run, args=(command,)).start()
print("begun", flush=True)
block()
""")
    assert ended.status == interrupts.STATUS and ended.seconds < 30


def test_who_handles_signals_itself_decides():
    ended = end_script("""
interrupts.GRACE = 0.1
def handle(number, frame):
    time.sleep(0.5)
    sys.exit(7)
signal.signal(signal.SIGINT, handle)
print("begun", flush=True)
time.sleep(60)
""")
    assert ended.status == 7


def test_an_ignored_interrupt_stays_ignored():
    ended = end_script("""
signal.signal(signal.SIGINT, signal.SIG_IGN)
interrupts.watch()
print("begun", flush=True)
time.sleep(0.5)
""")
    assert ended.status == 0


@pytest.mark.parametrize("body", ["time.sleep(60)", "[None for _ in iter(int, 1)]"])
def test_an_interrupt_may_stop_a_part_alone(body):
    """However long that takes; the next one ends the process."""
    ended = end_script(f"""
interrupts.GRACE = 0.1
try:
    with interrupts.stopping_the_body_alone():
        try:
            print("begun", flush=True)
            {body}
        finally:
            time.sleep(0.5)
except KeyboardInterrupt:
    print("goes on", flush=True)
    time.sleep(0.5)
signal.raise_signal(signal.SIGINT)
time.sleep(60)
""")
    assert ended.shown == "goes on\n" and "Ctrl-C again" in ended.errors
    assert ended.status == interrupts.STATUS


@pytest.mark.parametrize(
    ("given", "arguments", "module", "expected"),
    [
        (["python", "-m", "jaxspec", "chat"], ["-m", "chat"], None, True),
        (["python", "-X", "dev", "-mjaxspec", "-m"], ["-m", "-m"], None, True),
        (["python", "-m", "jaxspec.training.export"], ["-m"], None, True),
        (["python", "/bin/jaxspec", "chat"], ["/bin/jaxspec", "chat"], None, True),
        (["python", "-m", "jaxspec"], ["/lib/jaxspec/__main__.py"], "jaxspec.__main__", True),
        (["python", "-m", "mine", "jaxspec"], ["-m", "jaxspec"], None, False),
        (["python", "-m", "jaxspecs"], ["-m"], None, False),
        (["python", "-m", "pytest"], ["/lib/pytest/__main__.py"], "pytest.__main__", False),
        (["python", "jaxspec_chat.py"], ["jaxspec_chat.py"], None, False),
        (["python"], [""], None, False),
    ],
)
def test_commands_are_told_from_programs_of_others(monkeypatch, given, arguments, module, expected):
    spec = types.SimpleNamespace(name=module) if module else None
    monkeypatch.setattr(sys, "orig_argv", given)
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__spec__=spec))
    assert interrupts.is_command() is expected


def interrupt_first_call(command, folder, after, sees="", *options):
    """Interrupt a command with an empty cache so many seconds after it writes a certain line."""
    places = {"JAXSPEC_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    arguments = (*options, "-m", "jaxspec", *command)
    with started(*arguments, **places, JAX_LOG_COMPILES="1") as process:
        if sees:
            wait_for(sees, process.stderr)
        time.sleep(after)
        ended = interrupt(process)
    left = [*(folder / "tmp").rglob("*"), *(folder / "cache").rglob("*.partial")]
    return types.SimpleNamespace(**vars(ended), left=left)


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_a_command_ends_while_it_is_imported(tmp_path, after):
    command, sees = [*GENERATE, "mini"], "jaxspec.core.runtime.distribution"
    ended = interrupt_first_call(command, tmp_path, after, sees, "-X", "importtime")
    assert ended.status == interrupts.STATUS
    assert "Traceback" not in ended.errors and not ended.left


@pytest.mark.parametrize(
    "command",
    [
        (*GENERATE, "mini"),
        pytest.param((*GENERATE, "mini", "--json"), marks=pytest.mark.thorough),
        pytest.param(("serve", "mini", "--port", "0"), marks=pytest.mark.thorough),
    ],
)
def test_a_command_ends_while_it_compiles(tmp_path, command):
    after = random.Random(command[0]).uniform(0, 2)
    ended = interrupt_first_call(command, tmp_path, after, "Compiling jit(")
    # Two seconds on an idle machine, on which nothing else runs.
    assert ended.status == interrupts.STATUS and ended.seconds < 20
    assert "Traceback" not in ended.errors and not ended.left


@pytest.mark.thorough
def test_a_chat_goes_on_after_an_answer_was_stopped(tmp_path):
    places = {"JAXSPEC_CACHE": str(tmp_path), "JAX_LOG_COMPILES": "1"}
    with started("-m", "jaxspec", "chat", "mini", **places) as process:
        process.stdin.write("Why?\n")
        wait_for("Compiling jit(prefill)", process.stderr)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        wait_for("[stopped]", process.stdout)
        process.stdin.write("/stats\n/drafter ar\nSo?\n/stats\n")
        wait_for("There is no complete answer yet.", process.stdout)
        wait_for("tokens per round", process.stdout)
        # At the end of its input, which `interrupt` brings, a chat ends by itself.
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == interrupts.STATUS


@pytest.mark.thorough
@pytest.mark.parametrize("last", ["", "except KeyboardInterrupt: print('interrupted', flush=True)"])
def test_a_program_of_others_ends_without_a_crash(tmp_path, last):
    """As Python ends it; one that goes on can decode, by what was compiled meanwhile."""
    body = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import jaxspec
params = jaxspec.load("mini", drafter="dflash")
def decode():
    return jaxspec.decode(params, "hi", max_new_tokens=5, budget=4)
"""
    body += f"try: decode()\n{last}\nprint(decode().stats.emitted)" if last else "decode()"
    places = {"JAXSPEC_CACHE": str(tmp_path), "JAX_LOG_COMPILES": "1"}
    with started("-c", body, **places) as process:
        wait_for("Compiling jit(prefill)", process.stderr)
        time.sleep(0.3)
        ended = interrupt(process, timeout=300)
    if last:
        assert ended.status == 0 and ended.shown == "interrupted\n5\n"
    else:
        assert ended.status == -signal.SIGINT and ended.seconds < 20
        assert ended.errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mini", "smollm2-135m"])
def test_first_calls_end_at_any_moment(model):
    interrupt_first_calls(model, tries=20, longest=40.0)


def interrupt_first_calls(model, tries, longest, seed=0):
    """Interrupt first calls at random moments, print how they ended, and check it."""
    draw = random.Random(seed)
    for _ in range(tries):
        after = draw.uniform(0.05, longest)
        with tempfile.TemporaryDirectory() as folder:
            ended = interrupt_first_call([*GENERATE, model], Path(folder), after)
        print(f"after {after:5.1f} s: status {ended.status} in {ended.seconds:.2f} s", flush=True)
        # One that was done when the signal came has printed its whole answer.
        done = ended.status == 0 and ended.shown.endswith("\n")
        assert done or ended.status in ENDED, ended
        assert ended.seconds < 20 and not ended.left, ended


if __name__ == "__main__":
    interrupt_first_calls(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
