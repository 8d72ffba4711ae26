"""What process 0 tells the others, and that an engine which follows does what the first one did."""

import jax
import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run

import jaxspec
from jaxspec.serve import ServeRequest
from jaxspec.serve.follow import Followers, Packets, follow
from jaxspec.serve.programs import pack_control
from jaxspec.serve.rounds import Control

TAKES = {"visit": ((2, 3), (2,)), "feed": ((1, 20), (4,)), "clean": ((),), "reset": ()}


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter="dflash", dtype="float32")


def test_packets_hold_a_visit_and_are_of_one_size():
    packets = Packets(TAKES)
    assert packets.size == 9
    generator = np.random.default_rng(0)
    for name, expected in (("visit", 1), ("feed", 3), ("clean", 1), ("reset", 1)):
        arrays = [generator.integers(-(2**31), 2**31, x, np.int32) for x in TAKES[name]]
        packed = packets.pack(name, arrays)
        assert packed.shape == (expected, 9) and packets.count(packed[0]) == expected
        found, unpacked = packets.unpack(packed)
        assert found == name
        for one, other in zip(unpacked, arrays, strict=True):
            np.testing.assert_array_equal(one, other)


def test_floats_keep_their_bits():
    seconds = np.array([0.1, 1e-30], np.float32)
    control = pack_control(Control(3, True, False, -1, seconds))
    assert control.dtype == np.int32 and control[:4].tolist() == [3, 1, 0, -1]
    np.testing.assert_array_equal(control[4:].view(np.float32), seconds)


def test_an_engine_that_follows_holds_the_same_state(mini):
    """Prompts of several chunks, a reused one, sampling, log-probabilities and a cancelled request."""
    first, second = (make(mini, max_logprobs=20) for _ in range(2))
    told = []
    first._device.followers = Followers(first._device.takes, told.append)
    first.warm_up()
    long = ServeRequest(PROMPT * 6, max_new_tokens=6)
    run(first, long, ServeRequest(PROMPT, max_new_tokens=9, logprobs=2, **SAMPLED))
    cancelled = first.submit(ServeRequest(PROMPT, max_new_tokens=100))
    first.visit()
    first.cancel(cancelled)
    run(first, long)
    assert first.visit() == []  # says that it lives
    first.close()
    packets = iter(told)
    follow(second._device, lambda nothing: next(packets))
    assert next(packets, None) is None
    for one, other in zip(
        *(jax.tree.leaves(x._device.state) for x in (first, second)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert {packet.shape for packet in told} == {told[0].shape}
