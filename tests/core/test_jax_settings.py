"""JAX's own settings, which a user may have for other code, change no text."""

import contextlib
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from sharded_toys import make_params

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.cli.main import main
from jaxspec.core.runtime import jax_settings
from jaxspec.core.runtime.jax_settings import (
    SETTINGS,
    find_changed,
    own_process,
    under_own_settings,
)
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies import make_bastion
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.tuner.serving.costs import Costs

OTHERS = {
    "jax_enable_x64": True,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_transfer_guard": "disallow",
    "jax_threefry_partitionable": False,
    "jax_default_prng_impl": "rbg",
    "jax_legacy_prng_key": "error",
}
PROMPT = [4, 9, 2, 14, 4, 9]
OPTIONS = dict(max_new_tokens=8, seed=3, temperature=0.9, top_p=0.95, policy=None, budget=4)
GENERATE = ["generate", "--token-ids", "--prompt", "4 9 2 14 4 9", "--seed", "5", "--budget", "4"]
GENERATE += ["--temperature", "0.9", "--max-new-tokens", "8", "--drafter", "dflash"]


@contextlib.contextmanager
def others():
    """Other settings than those wanted, all of them, as a user makes them."""
    before = {name: getattr(jax.config, name) for name in OTHERS}
    for name, value in OTHERS.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.fixture(scope="module")
def toy():
    return make_params("qwen3", ("dflash",))


def decode(params, **changed):
    return jaxspec.decode(params, PROMPT, drafter="dflash", **group_options(**OPTIONS | changed))


def test_every_setting_is_tried():
    assert OTHERS.keys() == SETTINGS.keys() and not find_changed()
    with others():
        assert find_changed().keys() == SETTINGS.keys()
        with own_process():
            assert not find_changed()
        assert find_changed().keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_changes_no_text(toy, name):
    expected = decode(toy)
    with SETTINGS[name].context(OTHERS[name]):
        found = decode(toy)
        streamed = list(jaxspec.stream(toy, PROMPT, drafter="dflash", **group_options(**OPTIONS)))
    assert found.tokens == expected.tokens == sum(streamed, [])


def test_all_of_them_change_no_text(toy, tmp_path):
    """In a call, between the steps of a stream, and in what is saved and loaded."""
    expected = decode(toy).tokens
    with others():
        jaxspec.save(toy, tmp_path)
        loaded = jaxspec.load(tmp_path, dtype="float32")
        assert decode(loaded).tokens == expected
        pieces = []
        for piece in jaxspec.stream(loaded, PROMPT, drafter="dflash", **group_options(**OPTIONS)):
            assert find_changed().keys() == SETTINGS.keys()  # they hold for the caller
            pieces += piece
        assert pieces == expected
    assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(loaded)} == {4}


@pytest.mark.thorough
def test_an_engine_serves_under_all_of_them(toy):
    """Also where other threads compile."""
    assert serve(toy) == decode(toy).tokens
    with others():
        assert serve(toy) == decode(toy).tokens


def serve(params):
    settings = {name: OPTIONS[name] for name in ("max_new_tokens", "seed", "temperature", "top_p")}
    sizes = dict(slots=1, capacity=192, budget=4, edges=(4,), drafter="dflash")
    engine = make_engine(params, costs=Costs((1.2,), (5.0,)), **sizes)
    engine.submit(ServeRequest(tuple(PROMPT), **settings))
    tokens = []
    while not engine.idle:
        tokens += [token for update in engine.visit() for token in update.tokens]
    engine.close()
    return tokens


@pytest.mark.thorough
def test_policies_made_under_64_bits_work(toy):
    """Their arrays are of 64 bits then."""
    costs = ((1, 2, 4), (0.0,), 0.5, [[1.0], [1.1], [1.2]])
    expected = decode(toy, policy=make_bastion(make_costs(*costs))).tokens
    with SETTINGS["jax_enable_x64"].context(True):
        policy = make_bastion(make_costs(*costs))
        assert decode(toy, policy=policy).tokens == expected
    assert decode(toy, policy=policy).tokens == expected


def test_generators_keep_their_values():
    @under_own_settings
    def count(last: int):
        """Count."""
        yield from range(last)
        return "end"

    found, values = count(3), []
    while True:
        try:
            values.append(next(found))
        except StopIteration as ended:
            assert ended.value == "end"
            break
    assert values == [0, 1, 2] and (count.__name__, count.__doc__) == ("count", "Count.")


def test_a_generator_is_closed_with_what_it_wraps():
    ended = []

    @under_own_settings
    def count():
        try:
            yield 1
        finally:
            ended.append(True)

    steps = count()
    next(steps)
    steps.close()
    assert ended


def test_nothing_is_done_where_nothing_is_changed(monkeypatch):
    stack = jax_settings.contextlib.ExitStack
    monkeypatch.setattr(stack, "enter_context", lambda *args: pytest.fail("entered"))
    assert under_own_settings(np.sum)([1, 2]) == 3


@pytest.mark.thorough
def test_commands_run_under_all_of_them(toy, tmp_path, capsys):
    """In a process whose environment has them, and some that only say more."""
    jaxspec.save(toy, tmp_path)
    words = [*GENERATE, str(tmp_path)]
    assert main(words) == 0
    expected = capsys.readouterr().out
    more = {"JAX_LOG_COMPILES": "1", "JAX_RANDOM_SEED_OFFSET": "7"}
    more["JAX_DEFAULT_MATMUL_PRECISION"] = "bfloat16"
    environment = {name.upper(): str(value) for name, value in OTHERS.items()} | more
    command = [sys.executable, "-m", "jaxspec", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == expected


def test_a_platform_that_is_not_here_is_one_line():
    command = [sys.executable, "-m", "jaxspec", *GENERATE]
    environment = os.environ | {"JAX_PLATFORMS": "no_such"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "JAX_PLATFORMS is 'no_such'" in done.stderr


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend"), AssertionError()])
def test_a_device_that_does_not_start_is_one_line(monkeypatch, capsys, error):
    def devices():
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    assert main(GENERATE) == 2
    assert capsys.readouterr().err.startswith("jaxspec: error: JAX finds no device to run on (")
