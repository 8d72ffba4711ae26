"""What an engine hands over to those who train its drafter is what a plain forward pass says."""

import functools

import adapt_toys as toys
import jax
import numpy as np
import pytest
from serve_toys import make

from jaxspec.adapt.learning.cut import find_rows
from jaxspec.serve import ServeRequest
from jaxspec.serve.scheduling.schedule import Schedule
from jaxspec.targets.transformer import Transformer

ROWS = 60
OPTIONS = dict(builder="best_first", budget=8, edges=(2, 16), rounds=4)


class Listener:
    """Keeps what it hears, and publishes nothing."""

    drafter, rows, version, wants = "jetspec", ROWS, 0, True

    def __init__(self):
        self.heard, self.turns = [], []

    def start(self):
        self.turns.append("start")

    def begin_visit(self):
        self.turns.append("begin")

    def end_visit(self):
        self.turns.append("end")

    def publish(self, params):
        return None

    def hear(self, text):
        self.heard.append(text)

    def counters(self):
        return {}

    def close(self):
        self.turns.append("close")


@functools.partial(jax.jit, static_argnums=(0, 1))
def forward(config, layers, target, text):
    out = Transformer(config).apply(
        target, text[None], np.arange(len(text))[None], feature_layers=layers
    )
    return out.hidden[0], out.features[0]


def check_rows(params, text):
    """Compare the newest rows of a text with those of one pass without a cache."""
    layers = params.spec.drafter("jetspec").feature_layers
    tokens = [*text.prompt, *text.tokens]
    padded = np.zeros(320, np.int32)
    padded[: len(tokens)] = tokens
    hidden, features = forward(params.spec.target, layers, params.target, padded)
    evidence = text.evidence
    at = find_rows(len(text.prompt) - 1, text.counts, evidence.turn, text.chunk)
    assert len(at) == len(tokens) - 1 and evidence.kept == ROWS
    newest = np.arange(max(text.first, len(at) - ROWS), len(at))
    assert len(newest)
    np.testing.assert_allclose(evidence.hidden[0, at[newest]], hidden[newest], atol=2e-4)
    np.testing.assert_allclose(evidence.features[0, at[newest]], features[newest], atol=2e-4)
    return len(newest)


def serve(engine, *requests):
    """Return {index: tokens}."""
    ids, found = [engine.submit(one) for one in requests], {}
    while not engine.idle:
        for update in engine.visit():
            found.setdefault(ids.index(update.id), []).extend(update.tokens)
    return found


@pytest.fixture(scope="module")
def engine():
    engine = make(toys.make_params(), adapts=Listener(), **OPTIONS)
    engine.warm_up()
    return engine


@pytest.fixture
def listener(engine):
    engine.adapts.heard.clear()
    return engine.adapts


# Of three chunks.
LONG = tuple(int(x) for x in np.random.default_rng(3).integers(0, 30, 150))


def test_rows_are_those_of_a_plain_pass(engine, listener):
    """Also while another slot is fed, and where a slot held the prompt's beginning."""
    requests = [
        ServeRequest((4, 9, 2), max_new_tokens=100, temperature=1.0, seed=3),
        ServeRequest(LONG, max_new_tokens=30),
        ServeRequest((*LONG, 3), max_new_tokens=12),
    ]
    tokens = serve(engine, *requests)
    compiled = engine.counters()["compiles_after_warm_up"]
    heard = {len(text.prompt): text for text in listener.heard}
    assert sorted(heard) == [3, 150, 151]
    for index, request in enumerate(requests):
        text = heard[len(request.tokens)]
        assert text.tokens == tokens[index] and text.counts.sum() == len(text.tokens)
        assert len(text.counts) == len(text.rejected) == len(text.drafted)
        assert text.drafted.any() and text.rejected.any()
        check_rows(engine._device.params, text)
    assert heard[151].first == 128 and heard[150].first == 0
    assert compiled == 0


def test_rejections_are_those_of_the_traces(engine, listener):
    id, trees = engine.submit(ServeRequest((4, 9, 2), max_new_tokens=30, trace=True)), []
    while not engine.idle:
        trees += [update.tree for update in engine.visit() if update.tree is not None]
    (text,) = listener.heard
    # The last round is cut by the limit.
    wanted = [bool((one.tree.parent[1:] == one.path[-1]).any()) for one in trees[:-1]]
    assert text.rejected[:-1].tolist() == wanted and id >= 0
    assert text.counts[:-1].tolist() == [len(one.path) for one in trees[:-1]]


def test_requests_may_opt_out_or_not_draft(engine, listener):
    serve(
        engine,
        ServeRequest((5, 6, 7), max_new_tokens=9, adapt=False),
        ServeRequest((5, 6, 8), max_new_tokens=9, drafter="ar"),
        ServeRequest((5, 6, 9), max_new_tokens=9),
    )
    assert [text.prompt for text in listener.heard] == [[5, 6, 9]]


def test_unwanted_evidence_is_not_copied(engine, listener, monkeypatch):
    monkeypatch.setattr(listener, "wants", False)
    serve(engine, ServeRequest((5, 6, 7), max_new_tokens=9))
    (text,) = listener.heard
    assert text.evidence is None and text.drafted.any()


def test_a_request_that_lets_its_drafter_go_is_heard_then(engine, listener, monkeypatch):
    visits = iter(range(99))
    monkeypatch.setattr(Schedule, "observe", lambda *_: next(visits) == 1)
    (tokens,) = serve(engine, ServeRequest((9, 8, 7), max_new_tokens=60)).values()
    (text,) = listener.heard
    assert 0 < len(text.tokens) < len(tokens) and text.tokens == tokens[: len(text.tokens)]
    check_rows(engine._device.params, text)


def test_visits_have_the_device_to_themselves(engine, listener):
    listener.turns.clear()
    serve(engine, ServeRequest((5, 6, 7), max_new_tokens=9))
    assert listener.turns and listener.turns == ["begin", "end"] * (len(listener.turns) // 2)


def test_a_drafter_that_learns_cannot_be_replaced(engine):
    with pytest.raises(ValueError, match="'jetspec' learns from this engine"):
        engine.publish(engine._device.params.drafter("jetspec"))


def test_an_engine_without_it_keeps_no_rows():
    engine = make(toys.make_params(), **OPTIONS)
    assert engine._device.state.evidence is None and "adaptation" not in engine.counters()
    with pytest.raises(ValueError, match="drafter 'jetspec' learns, and the engine has 'ar'"):
        make(toys.make_params(), adapts=Listener(), **OPTIONS | dict(rule="ar"))
