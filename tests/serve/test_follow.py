"""What process 0 tells the others, and that an engine which follows does what the first one did."""

import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from serve_toys import PROMPT, SAMPLED, make, run
from short_models import load_short

from jaxspec.core.runtime.processes import end_together
from jaxspec.serve import ServeRequest
from jaxspec.serve.on_device.programs import pack_control
from jaxspec.serve.on_device.slot_rounds import Control
from jaxspec.serve.scheduling.follow import Followers, Packets, check_processes, follow

TAKES = {"visit": ((2, 3), (2,)), "feed": ((1, 20), (4,)), "clean": ((),), "reset": ()}


@pytest.fixture(scope="module")
def mini():
    return load_short()


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
    control = pack_control(Control(3, True, False, -1, seconds), 2)
    assert control.dtype == np.int32 and control[:4].tolist() == [3, 1, 0, -1]
    np.testing.assert_array_equal(control[4:].view(np.float32), seconds)


def list_names(packets, told):
    """The programs in the packets that were told."""
    names, begin = [], 0
    while begin < len(told):
        end = begin + packets.count(told[begin])
        names.append(packets.unpack(np.stack(told[begin:end]))[0])
        begin = end
    return names


@pytest.mark.slow
def test_an_engine_that_follows_holds_the_same_state(mini):
    """Measured costs, prompts of several chunks, copied slots, sampling, log-probabilities, and a
    cancelled request.
    """
    first, second = (make(mini) for _ in range(2))
    told = []
    first._device.followers = Followers(first._device.takes, told.append)
    first.warm_up()
    first._device.time_rounds(16, True, 0, 1)
    first._device.reset()
    long = ServeRequest(PROMPT * 6, max_new_tokens=6)
    run(first, long, long, ServeRequest(PROMPT, max_new_tokens=9, logprobs=2, **SAMPLED))
    cancelled = first.submit(ServeRequest(PROMPT, max_new_tokens=100))
    first.visit()
    first.cancel(cancelled)
    run(first, long)
    assert first.visit() == []  # says that it lives
    first.close()
    names = list_names(Packets(first._device.takes), told)
    assert set(names) == {*first._device.takes, "rest", "stop"} and names[-1] == "stop"
    packets = iter(told)
    follow(second._device, lambda nothing: next(packets))
    assert next(packets, None) is None
    for one, other in zip(
        *(jax.tree.leaves(x._device.state) for x in (first, second)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert {packet.shape for packet in told} == {told[0].shape}


def test_a_process_that_follows_takes_no_requests(mini, monkeypatch):
    engine = make(mini)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(RuntimeError, match=r"only process 0 takes requests: call Engine\.follow"):
        engine.visit()


class Shared:
    """A model that eight devices share, as far as `check_processes` looks."""

    target, drafters, layout = np.zeros(3), {}, SimpleNamespace(devices=8)
    spec = SimpleNamespace(target="a target", drafters=())


def two_processes(monkeypatch, other):
    """Pretend that there are two processes, the other of which has the digest `other(own)`."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    gather = multihost_utils, "process_allgather", lambda own: np.stack([own, other(own)])
    monkeypatch.setattr(*gather)


def test_processes_need_the_same_options(monkeypatch):
    two_processes(monkeypatch, lambda own: own)
    check_processes(Shared(), "options")
    two_processes(monkeypatch, lambda own: own + 1)
    with pytest.raises(ValueError, match="start the same command in each"):
        check_processes(Shared(), "options")


def test_all_devices_of_all_processes_share_the_target(monkeypatch):
    two_processes(monkeypatch, lambda own: own)
    four = Shared()
    four.layout = SimpleNamespace(devices=4)
    with pytest.raises(ValueError, match=r"all 8 devices share, and 4 have it: load it with mesh="):
        check_processes(four)
    four.layout = None
    with pytest.raises(ValueError, match="and 1 have it"):
        check_processes(four)


def test_an_error_ends_the_process_at_once(monkeypatch, capsys):
    """JAX's own exit would wait for the others."""

    class Ended(BaseException):
        pass

    def leave(status):
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Ended, match="1"), end_together():
        raise OSError("cannot listen:\ngive another port")
    assert capsys.readouterr().err == "jaxspec: error: cannot listen: give another port\n"
    with pytest.raises(Ended), end_together():
        raise RuntimeError("a bug")
    assert "Traceback" in capsys.readouterr().err
