"""Measured costs are kept and read again, and never fall as rows grow."""

import types
import warnings

import pytest

from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.tuner.serving import costs
from jaxspec.tuner.serving.live_costs import LiveCosts
from jaxspec.tuner.store import Store

STORE = Store()


@pytest.fixture
def fewer():
    """Numbers of rows that plain rounds are compiled for besides."""
    return ()


@pytest.fixture
def device(monkeypatch, tmp_path, fewer):
    """A device with a clock of its own, of which `timed` lists what was measured."""
    file, timed = tmp_path / "costs.json", []
    monkeypatch.setattr(costs, "_find_path", lambda device, store: file)
    seconds = {
        (False, 0): 1.0,
        (False, 1): 1.5,
        (False, 2): 1.4,
        (True, 0): 2.0,
        (True, 1): 1.5,
        (True, 2): 4.0,
    }

    def time_rounds(length, drafts, edge, rounds, part):
        assert part == 4
        timed.append((drafts, edge))
        # A busy moment hits the first measurement of each cost.
        return seconds[drafts, edge] * (1 + 9 * (timed.count((drafts, edge)) == 1))

    rules = Rules("global", (4, 8, 16), fewer)
    return types.SimpleNamespace(
        rules=rules,
        rules_of=lambda part: rules.of_part(part, 4),
        parts=(4,),
        slots=4,
        capacity=64,
        file=file,
        timed=timed,
        time_rounds=time_rounds,
        time_visit=lambda part: 0.3,
        reset=lambda: None,
    )


def test_costs_are_measured_once_and_kept(device):
    found = costs.find_costs(device, STORE)
    # Of three rounds' time, the visit's own is not theirs.
    assert found.drafted == pytest.approx((1.9, 1.9, 3.9)) and found.plain == pytest.approx((0.9,))
    assert found.visit == 0.3
    assert len(device.timed) == 3 * 4
    assert costs.find_costs(device, STORE) == found and len(device.timed) == 3 * 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"drafted": [1], "plain": [1]}'])
def test_files_of_no_use_are_written_anew(device, text):
    device.file.write_text(text)
    found = costs.find_costs(device, STORE)
    device.timed.clear()
    assert costs.find_costs(device, STORE) == found and not device.timed


def test_a_folder_that_cannot_be_written_costs_a_measurement(device, monkeypatch):
    monkeypatch.setattr(costs, "_find_path", lambda device, store: device.file / "below")
    device.file.write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says so, once in a process
        assert costs.find_costs(device, STORE).plain == pytest.approx((0.9,))


@pytest.mark.parametrize("fewer", [(1, 2)])
def test_plain_rounds_of_fewer_rows_have_costs_of_their_own(device):
    found = costs.find_costs(device, STORE)
    assert device.rules.plain_edges(device.slots) == (1, 2, 4)
    assert found.plain == pytest.approx((0.9, 1.4, 1.4))
    live = LiveCosts(found, device.rules.edges, device.rules.plain_edges(device.slots))
    assert [int(live.find(False, rows)) for rows in (1, 2, 3, 4)] == [0, 1, 2, 2]
    assert [int(live.find(True, rows)) for rows in (1, 4, 5, 16)] == [0, 0, 1, 2]
