"""The compiled programs of the engine: no copy of the caches, donated state."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.serve.factory import make_engine
from jaxspec.serve.on_device.change_slot import clean_slot
from jaxspec.serve.on_device.feed import feed
from jaxspec.serve.on_device.slot_rounds import Control
from jaxspec.serve.on_device.visit import visit

CAPACITY = 4096


@pytest.fixture(scope="module")
def device():
    folder = SHIPPED / "dflash"
    params = jaxspec.load(folder / "target", drafter=folder / "drafter", dtype="float32")
    options = dict(slots=4, capacity=CAPACITY, budget=8, edges=(4, 16))
    return make_engine(params, **options)._device


def compile_feed(device):
    tokens, where = np.zeros((1, device.capacity), np.int32), np.zeros(4, np.int32)
    return feed.lower(device.params, device.state, tokens, where, config=device.config).compile()


def compile_clean(device):
    slot = np.int32(0)
    return clean_slot.lower(device.params, device.state, slot, config=device.config).compile()


def compile_visit(device):
    return compile_rounds(device, device.slots)


def compile_part(device):
    return compile_rounds(device, 1)


def compile_rounds(device, part):
    rules = device.rules_of(part)
    seconds = np.ones(len(rules.edges), np.float32)
    control = Control(np.int32(4), np.bool_(False), np.bool_(True), np.int32(-1), seconds)
    arrays = device.params, device.state, device.settings, control, np.int32(0)
    lowered = visit.lower(*arrays, config=device.config, rules=rules, part=part)
    return lowered.compile()


def check_caches(device, make, share):
    """No copy of the target's cache, and the state is donated.

    Args:
      share: of the cache, which what a program computes must not take. It also holds the drafter's
        state of one slot, and what a chunk or a round computes.
    """
    memory, state = make(device).memory_analysis(), device.state
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= 0.99 * held, make.__name__
    assert memory.temp_size_in_bytes < share * state.decode.cache.k[0].nbytes, make.__name__


@pytest.mark.slow
@pytest.mark.parametrize("make", [compile_clean, compile_feed, compile_part, compile_visit])
def test_the_caches_are_updated_in_place(device, make):
    check_caches(device, make, 1.0)


# The older emitters of fusions, which tests use otherwise, hide copies that users' programs have.
AS_USERS_COMPILE = """
import sys
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/helpers"]
from serve.test_programs import check_caches, compile_feed, compile_part
from short_models import load_short
from jaxspec.serve.factory import make_engine

params = load_short("dflash")
device = make_engine(params, slots=8, capacity=4096, budget=8, edges=(4, 16))._device
for make in (compile_feed, compile_part):
    check_caches(device, make, 0.5)
"""


@pytest.mark.thorough
def test_users_programs_update_the_caches_in_place():
    tests = Path(__file__).parents[1]
    env = {name: value for name, value in os.environ.items() if name != "JAXSPEC_PANELS"}
    env |= {"PYTHONPATH": str(tests.parent), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    subprocess.run([sys.executable, "-c", AS_USERS_COMPILE, str(tests)], env=env, check=True)


def test_all_leaves_of_the_state_are_buffers_of_their_own(device):
    leaves = jax.tree.leaves(device.state)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size}) == len(leaves)
