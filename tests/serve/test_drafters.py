"""Several drafters side by side: each request has the texts of `decode`, and its drafter's drafts."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve import InvalidRequest, ServeRequest
from jaxspec.serve.factory import make_engine
from jaxspec.serve.scheduling.prefixes import HeldPrefixes
from jaxspec.serve.scheduling.schedule import Schedule
from jaxspec.targets.layouts.registry import like
from jaxspec.tuner import drafter_choice
from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.serving.draft_choice import DraftChoice
from pallas_kernels.versions import vectorizes_sums

# They read different layers of the target, and have different depths.
NAMES = ("dflash", "medusa")
TEXTS = ("The cat sat on the", "def add(a, b):\n    return", "1 2 3 4 5 6", "Once upon a time", "A")
TOP = dict(temperature=1.0, top_k=20, top_p=0.9, seed=8)
OPTIONS = dict(max_new_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def mini():
    return load_short(None)


@pytest.fixture(scope="module")
def engine(mini):
    engine = make(mini, drafter=NAMES)
    engine.warm_up()
    return engine


@pytest.fixture
def wavering(monkeypatch):
    """Let visits of drafted requests run plain rounds by chance."""
    pick, drafts = random.Random(0), Schedule._drafts
    waver = "_drafts", lambda self, *given: drafts(self, *given) and pick.random() < 0.7
    monkeypatch.setattr(Schedule, *waver)


def draw_requests(params, count, sampling, names, seed=0):
    """Requests of all kinds."""
    tokenizer, pick = load_tokenizer(params.spec.tokenizer), random.Random(seed)
    stops = ((), (), (" the",), ("e", "zzz"), (tokenizer.encode(" a")[-1],))
    return [
        ServeRequest(
            tuple(tokenizer.encode(pick.choice(TEXTS)) * pick.choice((1, 1, 1, 12))),
            max_new_tokens=pick.choice((1, 7, 24, 40)),
            stop=pick.choice(stops),
            drafter=pick.choice((None, *names, "ar")),
            **pick.choice(sampling),
        )
        for _ in range(count)
    ]


def scramble(weights, seed):
    """Mix up the entries of all trained weights."""
    mix = np.random.default_rng(seed).permutation
    trained = jax.tree.map(lambda leaf: mix(np.asarray(leaf).ravel()).reshape(leaf.shape), weights)
    return {**weights, "params": trained["params"]}


class Load:
    """Sends requests at random visits, cancels some, and publishes weights on the way."""

    def __init__(self, engine, requests, weights, seed=0, cancels=0.1, publishes=0.1):
        self.engine, self.requests, self.weights = engine, requests, weights
        self.pick, self.cancels, self.publishes = random.Random(seed), cancels, publishes
        self.found, self.ids, self.cancelled, self.published = {}, {}, set(), 0

    def run(self):
        """Return the updates of each request, by index."""
        waiting = list(enumerate(self.requests))
        while waiting or not self.engine.idle:
            while waiting and self.pick.random() < 0.5:
                index, request = waiting.pop(0)
                self.ids[self.engine.submit(request)] = index
            self._disturb()
            for update in self.engine.visit():
                self.found.setdefault(self.ids[update.id], []).append(update)
        return self.found

    def _disturb(self):
        running = [id for id, index in self.ids.items() if not self._ended(index)]
        if running and self.pick.random() < self.cancels:
            self.cancelled.add(self.ids[id := self.pick.choice(running)])
            self.engine.cancel(id)
        if self.pick.random() < self.publishes:
            self.published += 1
            name, weights = self.pick.choice(list(self.weights.items()))
            mixed = self.pick.random() < 0.3
            self.engine.publish(scramble(weights, self.published) if mixed else weights, name)

    def _ended(self, index):
        return index in self.found and self.found[index][-1].finish is not None


def check_texts(params, load):
    """Compare each request with `decode` alone; return accepted draft tokens by method."""
    accepted, alone = {}, {}
    for index, request in enumerate(load.requests):
        names = ("max_new_tokens", "stop", "temperature", "top_k", "top_p", "min_p", "seed")
        options = {name: getattr(request, name) for name in names}
        key = request.tokens, *options.values()
        if key not in alone:
            given = dict(drafter="ar", capacity=320, **options)
            alone[key] = jaxspec.decode(params, list(request.tokens), **group_options(**given))
        updates, expected = load.found[index], alone[key]
        tokens = [token for update in updates for token in update.tokens]
        text = "".join(update.text for update in updates)
        if updates[-1].finish == "abort":
            assert index in load.cancelled
            assert tokens == expected.tokens[: len(tokens)] and expected.text.startswith(text)
        else:
            assert (tokens, text) == (expected.tokens, expected.text), request
            assert updates[-1].finish == expected.stats.finish_reason, request
        drafted = sum(int(flag) for update in updates for flag in update.drafted)
        accepted[request.drafter] = accepted.get(request.drafter, 0) + drafted
    return accepted


def read_weights(params, names):
    return {name: params.drafter(name) for name in names}


@pytest.mark.usefixtures("wavering")
def test_every_text_is_that_of_decode_alone_whichever_drafter_drafts(mini, engine):
    requests = draw_requests(mini, 14, ({}, dict(temperature=1.0, seed=3), TOP), NAMES)
    load = Load(engine, requests, read_weights(mini, NAMES), publishes=0.3)
    load.run()
    counters = engine.counters()
    assert counters["compiles_after_warm_up"] == 0  # `decode` compiles what comes next
    accepted = check_texts(mini, load)
    assert accepted["ar"] == 0 and min(accepted[name] for name in (None, *NAMES)) > 0
    assert load.published > 1 and 0 < counters["finished"]["abort"] < len(requests) / 2
    for name in NAMES:  # for other tests
        engine.publish(mini.drafter(name), name)


LONG = tuple(range(40, 140))  # more than a chunk
REQUESTS = [
    ServeRequest(PROMPT, **OPTIONS),
    ServeRequest(tuple(b"1 2 3 4 5 6 7"), **OPTIONS, **SAMPLED),
    ServeRequest(LONG, **OPTIONS),
]


def with_method(request, method):
    return ServeRequest(**{**vars(request), "drafter": method})


@pytest.fixture(scope="module")
def alone(mini):
    """By drafter: an engine that has it alone, and what requests get from it."""
    engines = {name: make(mini, drafter=name) for name in NAMES}
    return {name: (one, run(one, *REQUESTS)) for name, one in engines.items()}


@pytest.mark.slow
def test_each_drafter_accepts_what_it_does_alone(engine, alone):
    """Losslessness hides drafts that are wrong; the tokens of every round do not."""
    requests = [with_method(one, name) for one in REQUESTS for name in NAMES]
    found = run(engine, *requests)
    for request, (tokens, _, drafted, _) in zip(requests, found, strict=True):
        place = REQUESTS.index(with_method(request, None))
        assert (tokens, drafted) == tuple(alone[request.drafter][1][place][::2]), request
    assert all(any(drafted) for _, _, drafted, _ in found)


@pytest.mark.thorough
def test_what_waits_reaches_its_own_drafter(engine, alone, monkeypatch):
    """Plain rounds queue what drafters have yet to read. Visits are of both kinds in turn."""
    for name in NAMES:
        made = []
        for one in (alone[name][0], engine):
            turns = iter([False, True] * 99)
            drafts = "_drafts", lambda self, running, part, turns=turns: next(turns)
            monkeypatch.setattr(Schedule, *drafts)
            ((tokens, _, drafted, _),) = run(one, with_method(REQUESTS[0], name))
            made.append((tokens, drafted))
        assert made[0] == made[1] and any(made[0][1])


def test_rows_serve_requests_of_the_drafter_that_read_them(engine, mini):
    """Nothing of it is used again by another drafter, or after its weights were replaced."""

    def count(method, *publish):
        for name in publish:
            engine.publish(mini.drafter(name), name)
        before = engine.counters()["reused_tokens"]
        ((_, _, drafted, _),) = run(engine, ServeRequest(prompt, drafter=method, **OPTIONS))
        assert any(drafted)
        return engine.counters()["reused_tokens"] - before

    prompt = tuple(range(300, 400))
    assert [count("medusa"), count("medusa"), count("dflash"), count("dflash")] == [0, 64, 0, 64]
    assert [count("dflash", "medusa"), count("dflash", "dflash")] == [64, 0]
    id = engine.submit(ServeRequest(prompt, **OPTIONS))
    engine.visit()
    engine.publish(mini.drafter("dflash"))
    assert id in {task.id for task in engine._tasks.values()}
    while not engine.idle:
        engine.visit()
    assert count("dflash") == 0  # the old weights read its beginning


def test_each_drafter_has_a_table_of_its_own(engine):
    def read():
        known = engine._device.state.calibration
        return np.split(np.asarray(known.hits), 2), np.split(np.asarray(known.expected), 2)

    before = read()
    run(engine, with_method(REQUESTS[1], "medusa"))
    for old, new in zip(before, read(), strict=True):
        assert (new[0] <= old[0]).all() and new[1].sum() > 0.9 * old[1].sum()
    assert read()[1][1][1:6].all() and not read()[1][1][6:].any()  # it has five heads


def test_drafters_that_nobody_needs_do_not_run(engine):
    before = engine._device.state.decode.draft
    read = [[np.asarray(leaf) for leaf in jax.tree.leaves(one)] for one in before]
    run(engine, *[with_method(one, "medusa") for one in REQUESTS])
    after = [jax.tree.leaves(one) for one in engine._device.state.decode.draft]
    same = [all(map(np.array_equal, *pair)) for pair in zip(read, after, strict=True)]
    assert same == [True, False]


@pytest.mark.thorough
def test_a_slot_that_breaks_is_clean_for_all_drafters(engine, alone):
    id = engine.submit(with_method(REQUESTS[0], "medusa"))
    engine.visit()
    ((slot, task),) = engine._tasks.items()
    assert task.id == id and not task.tokens[30:]

    def spoil(cache):
        k, v = jax.tree.map(lambda x: x.at[:, slot].set(jnp.nan), (cache.k, cache.v))
        return cache.replace(k=k, v=v)

    state, decode = engine._device.state, engine._device.state.decode
    drafts = spoil(decode.draft[0]), decode.draft[1].at[slot].set(jnp.nan)
    spoiled = decode.replace(cache=spoil(decode.cache), draft=drafts)
    engine._device.state = state.replace(decode=spoiled)
    ends = [update.finish for update in engine.visit()]
    assert ends == ["error"]
    state = engine._device.state.replace(hidden=None)  # a visit writes it before it reads it
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state))
    found = run(engine, *[with_method(REQUESTS[0], name) for name in NAMES])
    assert [one[::2] for one in found] == [alone[name][1][0][::2] for name in NAMES]


def test_weights_are_copied_and_change_drafts(engine, mini):
    """The engine's own are not those of the caller, who may donate them."""
    request, weights = with_method(REQUESTS[0], "medusa"), scramble(mini.drafter("medusa"), 1)
    known = run(engine, request)[0]
    given = jax.tree.map(jnp.array, weights)
    copied = ["panels" in engine._device.params.drafter(name) for name in NAMES]
    assert set(copied) == {vectorizes_sums()}
    engine.publish(given, "medusa")
    for leaf in jax.tree.leaves(given):
        leaf.delete()
    found = run(engine, request)[0]
    assert found[0] == known[0] and sum(found[2]) < sum(known[2])
    used = engine._device.params.drafter("medusa")
    expected = like(weights, used)
    assert jax.tree.all(jax.tree.map(np.array_equal, used, expected))
    engine.publish(mini.drafter("medusa"), "medusa")
    assert run(engine, request)[0] == known


@pytest.mark.thorough
def test_the_choice_is_among_the_engines_drafters(mini, monkeypatch):
    """Of many loaded drafters it has the first two, and now and then the one that waited longest."""
    monkeypatch.setattr(drafter_choice, "REVISIT", 1)
    options = dict(slots=2, capacity=320, budget=8, edges=(2, 16), rounds=8, visit_seconds=None)
    engine = make_engine(mini, costs=Costs((1.0, 1.001), (5.0, 5.0)), lookup=False, **options)
    assert len(mini.spec.drafters) > len(engine.drafters) == 2
    for _ in range(4):
        ((tokens, *_),) = run(engine, ServeRequest(PROMPT, **OPTIONS))
        assert len(tokens) == 30


def test_a_client_chooses_by_name(engine, mini):
    httpx = pytest.importorskip("httpx")
    http_server = pytest.importorskip("http_server")
    body = {"prompt": list(PROMPT), "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    tokenizer = load_tokenizer(mini.spec.tokenizer)
    with http_server.running(engine, tokenizer, model="mini", visit_timeout=300) as server:
        answers = [server.post(drafter=name, **body).json() for name in (*NAMES, "ar")]
        refused = server.post(drafter="eagle3", **body)
    assert isinstance(refused, httpx.Response) and refused.status_code == 400
    error = json.loads(refused.text)["error"]
    assert error["param"] == "drafter" and "give 'dflash', 'medusa' or 'ar'" in error["message"]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    counts = [answer["metrics"]["speculative_decoding"] for answer in answers]
    rounds = [one["num_rounds"] for one in counts]
    assert rounds[2] == 20 and max(rounds[:2]) < 20
    assert [one["num_drafts"] > 0 for one in counts] == [True, True, False]


def test_requests_name_a_drafter_of_the_engine(mini):
    engine = make(mini, drafter=list(NAMES))
    assert engine.drafters == NAMES and engine.drafter == "dflash"
    with pytest.raises(InvalidRequest, match="give 'dflash', 'medusa' or 'ar'") as refused:
        engine.check(ServeRequest(PROMPT, drafter="jetspec"))
    assert refused.value.field == "drafter" and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (dict(drafter=()), ValueError, r"drafter is \(\): give one name, or those of several"),
        (dict(drafter=("dflash", "dflash")), ValueError, "each once"),
        (dict(drafter=("dflash", "ar")), ValueError, "every request may ask for 'ar'"),
        (dict(drafter=("dflash", "dspark")), ValueError, "unknown drafter 'dspark'"),
        (dict(drafter=("dflash", 3)), TypeError, "drafter is 3: give 'ar', or the name"),
        (dict(drafter=NAMES, budget=1), ValueError, "need a budget of at least 2 rows"),
        (dict(drafter=NAMES, builder="rank_guided"), ValueError, "does not suit 'dflash'"),
    ],
)
def test_bad_lists_of_drafters_are_refused(mini, options, error, says):
    with pytest.raises(error, match=says) as refused:
        make(mini, **options)
    assert "\n" not in str(refused.value)


def test_the_first_call_of_a_program_takes_what_all_others_do(mini):
    """A weak dtype in the first state would make each program that takes it compile twice."""
    state = make(mini, drafter=NAMES, lookup=True)._device.state
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))


def test_a_list_of_one_drafter_is_an_engine_of_one(mini):
    engine = make(mini, drafter=["medusa"])
    assert engine.drafters == ("medusa",) and engine._device.config == (
        make(mini, drafter="medusa")._device.config
    )


@pytest.mark.parametrize(
    ("change", "method", "says"),
    [
        (lambda weights: weights, "jetspec", "drafter is 'jetspec': give 'dflash' or 'medusa'"),
        (lambda weights: weights, "ar", "drafter is 'ar': give 'dflash' or 'medusa'"),
        (lambda weights: {}, "medusa", r"is missing, and the engine's is float32\["),
        (
            lambda weights: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights),
            "medusa",
            r"is bfloat16\[.*give arrays of the same names, shapes and dtypes",
        ),
        (
            lambda weights: jax.tree.map(lambda leaf: leaf[:1], weights),
            None,
            r"weights of 'dflash': .* is float32\[1",
        ),
        (lambda weights: {**weights, "more": np.ones(2)}, "medusa", r"\['more'\] is float64\[2\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(mini, change, method, says):
    engine = make(mini, drafter=NAMES)
    before = engine._device.params
    with pytest.raises(ValueError, match=says) as refused:
        engine.publish(change(mini.drafter(method if method in NAMES else "dflash")), method)
    assert "\n" not in str(refused.value) and engine._device.params is before


def test_an_engine_without_a_drafter_takes_no_weights(mini):
    with pytest.raises(ValueError, match="drafter is 'ar': the engine has no drafter"):
        make(mini, drafter="ar").publish({})


def test_several_processes_take_no_weights(mini, monkeypatch):
    engine = make(mini, drafter=NAMES)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="several processes share the target: start them again"):
        engine.publish(mini.drafter("dflash"))


def test_rows_are_held_for_the_drafter_that_read_them():
    held = HeldPrefixes(2, 4)
    held.hold(0, range(9), reader=2)
    assert [held.count(0, range(20), reader) for reader in (0, 1, 2)] == [8, 0, 8]
    held.forget_reader(1)
    assert held.find(range(20), 2) == (0, 8)
    held.forget_reader(2)
    assert held.count(0, range(20), 2) == 0 and held.count(0, range(20), 0) == 8


MANY = (
    *({}, {}, dict(temperature=1.0, seed=3), dict(temperature=1.0, top_k=7, seed=-1)),
    *(dict(temperature=1.0, top_p=0.8, seed=2**40 + 5), TOP),
    dict(temperature=1.0, top_k=20, top_p=0.9, min_p=0.02),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "lookup"), [(("jetspec", "eagle3"), False), (("eagle3", "dflash", "medusa"), True)]
)
def test_two_hundred_requests_of_all_methods(names, lookup, monkeypatch):
    """Acceptance of the engine, on the whole model."""
    mini = jaxspec.load("mini", dtype="float32")
    pick = random.Random(0)
    for name in ("wants_drafts", "wants_followers"):
        monkeypatch.setattr(DraftChoice, name, lambda choice: pick.random() < 0.8)
    # More rows hardly cost more, or else drafters of scrambled weights would soon get none.
    costs = Costs((1.0, 1.001, 1.002), (0.9,) * 3)
    sizes = dict(slots=4, capacity=320, budget=8, edges=(4, 8, 32), queue=200)
    engine = make_engine(mini, drafter=names, lookup=lookup, costs=costs, **sizes)
    engine.warm_up()
    load = Load(engine, draw_requests(mini, 200, MANY, names, seed=1), read_weights(mini, names))
    load.run()
    counters = engine.counters()
    accepted = check_texts(mini, load)
    print(f"{'+'.join(names)}: {counters['finished']}, {load.published} publications,")
    rounds = f"{counters['drafted_rounds']} of {counters['rounds']} rounds drafted"
    print(f"accepted {accepted} of {counters['tokens']} tokens, {rounds}")
    assert accepted["ar"] == 0 and min(accepted[name] for name in names) > 10
    assert counters["compiles_after_warm_up"] == 0 and sum(counters["finished"].values()) == 200
    assert load.published > 10 and counters["finished"]["abort"] > 10
