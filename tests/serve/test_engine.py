"""The serving engine gives every request what `jaxspec.decode` gives it alone, whatever else runs."""

import functools
import random

import numpy as np
import pytest
import serve_toys
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.serve import InvalidRequest, QueueFull, ServeRequest
from jaxspec.serve.factory import make_engine
from jaxspec.serve.scheduling.prefixes import HeldPrefixes
from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.serving.draft_choice import DraftChoice
from jaxspec.tuner.serving.live_costs import LiveCosts

TEXTS = (
    "The cat sat on the",
    "def add(a, b):\n    return",
    "1 2 3 4 5 6",
    "Once upon a time there was a small",
    "A",
)
SAMPLING = (
    {},
    dict(temperature=1.0, seed=3),
    dict(temperature=0.8, top_k=7, seed=-1),
    dict(temperature=0.7, top_p=0.8, seed=2**40 + 5),
    dict(temperature=1.2, top_k=20, top_p=0.9, min_p=0.02),
    dict(temperature=0.9, top_k=100, top_p=0.95, seed=8),
    dict(temperature=1.0, min_p=0.1),
    dict(frequency_penalty=0.6, repetition_penalty=1.2),
    dict(temperature=0.9, seed=2, presence_penalty=0.8, repetition_penalty=0.9, min_tokens=5),
)

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def mini():
    return load_short()


def make(params, slots, **options):
    """An engine with made-up costs, so that no test depends on a time."""
    costs = Costs((1.0, 1.5), (0.9,) * 3)
    options = dict(capacity=320, budget=8, edges=(slots, 8 * slots), costs=costs) | options
    return make_engine(params, slots=slots, **options)


def run(engine, arrivals, seed=0, after=lambda engine, visit: None):
    """Submit requests at random visits; return the updates of each, by index."""
    order, ids, found, visits = random.Random(seed), {}, {}, 0
    waiting = list(enumerate(arrivals))
    while waiting or not engine.idle:
        while waiting and order.random() < 0.5:
            index, request = waiting.pop(0)
            ids[engine.submit(request)] = index
        for update in engine.visit():
            found.setdefault(ids[update.id], []).append(update)
        after(engine, visits)
        visits += 1
        assert visits < 5000
    return [found[index] for index in range(len(arrivals))]


def join(updates):
    tokens = [token for update in updates for token in update.tokens]
    drafted = [flag for update in updates for flag in update.drafted]
    assert len(tokens) == len(drafted)
    assert [update.finish for update in updates[:-1]] == [None] * (len(updates) - 1)
    return tokens, "".join(update.text for update in updates), updates[-1].finish


def random_requests(params, count, sampling, seed=0):
    """Requests of all kinds, and what `decode` gives each. Its method does not matter."""
    from jaxspec.io.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(params.spec.tokenizer)
    pick, requests = random.Random(seed), []
    for _ in range(count):
        prompt = tokenizer.encode(pick.choice(TEXTS)) * pick.choice((1, 1, 1, 12))
        stop = pick.choice(((), (), (" the",), ("e", "zzz"), (tokenizer.encode(" a")[-1],)))
        options = dict(pick.choice(sampling), stop=stop, max_new_tokens=pick.choice((1, 7, 24, 40)))
        if "min_tokens" in options:
            options["max_new_tokens"] += 5
        requests.append((tuple(prompt), options, pick.choice((None, None, "ar"))))
    return [
        (
            ServeRequest(prompt, drafter=method, **options),
            jaxspec.decode(
                params, list(prompt), drafter="ar", capacity=320, **group_options(**options)
            ),
        )
        for prompt, options, method in requests
    ]


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch):
    """Keep made-up costs: on a busy machine, measured ones may leave no tree more than its root."""
    monkeypatch.setattr(LiveCosts, "observe", lambda *visit: None)


@pytest.fixture
def wavering(monkeypatch):
    """Let engines draft and rest by chance, visit by visit and request by request."""
    pick = random.Random(0)
    for name in ("wants_drafts", "wants_followers"):
        monkeypatch.setattr(DraftChoice, name, lambda choice: pick.random() < 0.7)


@pytest.fixture
def drafting(monkeypatch):
    """Let engines draft whenever a request wants drafts."""
    for name in ("wants_drafts", "wants_followers"):
        monkeypatch.setattr(DraftChoice, name, lambda choice: True)


# Rows that cost next to nothing, so that every drafted round verifies a tree.
CHEAP = Costs((1.0, 1.001), (0.9,) * 3)
# A number of rows between the least and the most; every number takes seconds to compile.
MIDDLE = dict(costs=Costs((1.0, 1.25, 1.5), (0.9,) * 3))


# Engines of 2 slots share their programs, so all other tests that run requests have 2 slots.
# `decode` compiles a program for each kind of sampling: by default none, one and all of its steps.
@pytest.mark.parametrize(
    ("slots", "sampling", "options"),
    [
        (2, (SAMPLING[0], SAMPLING[1], SAMPLING[4]), {}),
        *(pytest.param(slots, SAMPLING, MIDDLE, marks=SLOW) for slots in (1, 2, 3, 8)),
        pytest.param(2, SAMPLING, dict(lookup=True), marks=SLOW),
    ],
)
@pytest.mark.usefixtures("wavering")
def test_every_text_is_that_of_decode_alone(mini, slots, sampling, options):
    if options:  # a slow case
        mini = jaxspec.load("mini", drafter="dflash", dtype="float32")
    cases = random_requests(mini, 4 * len(sampling), sampling, seed=slots)
    if options is MIDDLE:
        options = MIDDLE | dict(edges=(slots, 2 * slots, 8 * slots))
    engine = make(mini, slots, **dict(costs=CHEAP) | options)

    def conserve(engine, visit):
        assert engine.counters()["running"] <= slots

    results = run(engine, [request for request, _ in cases], after=conserve)
    for (request, alone), updates in zip(cases, results, strict=True):
        tokens, text, finish = join(updates)
        assert (tokens, text) == (alone.tokens, alone.text), request
        assert finish == alone.stats.finish_reason, request
    counters = engine.counters()
    assert counters["running"] == counters["waiting"] == 0
    assert counters["tokens"] == sum(len(alone.tokens) for _, alone in cases)
    assert sum(counters["finished"].values()) == len(cases)
    # The drafter was trained for the whole model, so a short one seldom accepts a token of it.
    assert counters["drafted_rounds"] > 0 and max(counters["rows_per_round"]) > slots
    assert sum(counters["accepted"]) <= counters["draft_tokens"]
    assert 0 < counters["drafts"] < counters["slot_rounds"]
    assert counters["compiles_after_warm_up"] == 0 and (not options or sum(counters["accepted"]))


@pytest.mark.thorough
def test_drafts_are_counted_apart_from_plain_rounds(mini):
    """Beside a request that drafts, one without a drafter runs the same rounds, and never drafts."""
    engine = serve_toys.make(mini)
    text = dict(max_new_tokens=20, ignore_eos=True)
    asked = [ServeRequest((50, 60, 70), **text), ServeRequest((60, 70), drafter="ar", **text)]
    drafting, plain = run(engine, asked)
    drafts, tokens, rounds = (
        [sum(getattr(one, name) for one in updates) for updates in (drafting, plain)]
        for name in ("drafts", "draft_tokens", "rounds")
    )
    assert drafts[1] == tokens[1] == 0 and rounds[1] == 20
    # A draft fills the budget of 8 rows, of which the root is one; near the limit it may not.
    assert 0 < drafts[0] == rounds[0] and drafts[0] < tokens[0] <= 7 * drafts[0]
    counters = engine.counters()
    found = [counters[name] for name in ("drafts", "draft_tokens", "slot_rounds")]
    assert found == [drafts[0], tokens[0], sum(rounds)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(rounds=17), "rounds is 17: give an integer from 1 to 16"),
        (dict(visit_seconds=0), "visit_seconds is 0: give a number of seconds up to 60, or None"),
        (dict(rule="best"), "unknown rule"),
        (dict(edges=(1,)), "at least the 2 slots"),
        (dict(costs=Costs((1.0,), (1.0,))), r"give those of \(2, 16\) and of \(1, 2\) rows"),
    ],
)
def test_bad_options_are_refused(mini, options, says):
    with pytest.raises(ValueError, match=says):
        make(mini, 2, **options)


@SLOW
def test_nothing_compiles_after_warm_up(mini):
    engine = make(mini, 2)
    assert engine.counters()["compiles_after_warm_up"] is None
    engine.warm_up()
    requests = [
        ServeRequest(tuple(range(5, 6 + 9 * i)), max_new_tokens=5 + i, drafter=method, **sampling)
        for i, (sampling, method) in enumerate(zip(SAMPLING, (None, "ar") * 4, strict=False))
    ]
    run(engine, requests)
    assert engine.counters()["compiles_after_warm_up"] == 0


def test_a_cancelled_request_ends_and_others_go_on(mini):
    engine, request = make(mini, 2), ServeRequest((5, 6, 7), max_new_tokens=60, ignore_eos=True)
    alone = join(run(make(mini, 2), [request])[0])
    first, second, third = (engine.submit(request) for _ in range(3))
    found = {first: [], second: [], third: []}
    for visit in range(200):
        if visit == 1:
            engine.cancel(first)
            engine.cancel(third)  # waits
            engine.cancel(10**6)
        for update in engine.visit():
            found[update.id].append(update)
        if visit == 1:
            assert engine.counters()["running"] == 1
    assert engine.idle
    assert join(found[second]) == alone
    for id in (first, third):
        tokens, text, finish = join(found[id])
        assert finish == "abort"
        assert tokens == alone[0][: len(tokens)] and alone[1].startswith(text)
    assert len(join(found[first])[0]) > 0 and join(found[third])[0] == []
    assert engine.counters()["finished"] == {"length": 1, "abort": 2}


def test_deadlines_end_running_and_waiting_requests(mini):
    now = [0.0]
    engine = make(mini, 2, clock=lambda: now[0])
    options = dict(max_new_tokens=200, ignore_eos=True)
    ids = [engine.submit(ServeRequest((5, 6, 7), deadline=d, **options)) for d in (5.0, 5.0, 3.0)]
    first = engine.visit()
    assert [(update.id, update.finish) for update in first] == [(id, None) for id in ids[:2]]
    now[0] = 4.0
    assert {update.id: update.finish for update in engine.visit()} == {
        ids[0]: None,
        ids[1]: None,
        ids[2]: "deadline",
    }
    now[0] = 6.0
    ended = {update.id: update.finish for update in engine.visit()}
    assert ended == dict.fromkeys(ids[:2], "deadline")
    assert engine.idle


def test_a_full_queue_refuses(mini):
    engine = make(mini, 1, queue=2)
    for _ in range(2):
        engine.submit(ServeRequest((5,)))
    with pytest.raises(QueueFull) as refused:
        engine.submit(ServeRequest((5,)))
    assert refused.value.retry_after >= 1
    assert engine.counters()["refused"] == 1


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        (dict(tokens=()), "tokens", "empty prompt"),
        (dict(tokens=(10**6,)), "tokens", "outside the vocabulary"),
        (dict(tokens=(5,) * 300), "max_new_tokens", "exceed the 288 tokens"),
        (dict(max_new_tokens=0), "max_new_tokens", "max_new_tokens is 0"),
        (dict(max_new_tokens=9, min_tokens=10), "min_tokens", "from 0 to 9"),
        (dict(min_tokens=2**40), "min_tokens", "from 0 to 256"),
        (dict(temperature=-1.0), "temperature", "temperature"),
        (dict(temperature="warm"), "temperature", "temperature must be a number"),
        (dict(top_k=0), "top_k", "top_k"),
        (dict(top_p=0.0), "top_p", "top_p"),
        (dict(min_p=2.0), "min_p", "min_p"),
        (dict(presence_penalty=-2.5), "presence_penalty", "from -2 to 2"),
        (dict(frequency_penalty="a"), "frequency_penalty", "must be a number"),
        (dict(repetition_penalty=0), "repetition_penalty", "above 0"),
        (dict(drafter="eagle3"), "drafter", "give 'dflash' or 'ar'"),
        (dict(stop=("",)), "stop", "stop string is empty"),
        (dict(stop=tuple(range(20))), "stop", "at most 16"),
        (dict(weight=0.0), "weight", "weight"),
        (dict(weight=1e300), "weight", "from 0.001 to 1000"),
        (dict(deadline=-1.0), "deadline", "deadline"),
        (dict(seed=1.5), "seed", "seed"),
        (dict(sequence=-1), "sequence", "sequence"),
        (dict(trace=1), "trace", "give True or False"),
        (dict(logprobs=1), "logprobs", "make the engine with max_logprobs"),
        (dict(logit_bias={5: 1.0}), "logit_bias", "must be pairs of a token id and a number"),
    ],
)
def test_invalid_requests_are_refused_in_one_line_that_names_the_field(mini, fields, field, says):
    engine = make(mini, 1)
    with pytest.raises(InvalidRequest, match=says) as refused:
        engine.submit(ServeRequest(**(dict(tokens=(5,)) | fields)))
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    assert engine.idle


@pytest.mark.usefixtures("drafting")
def test_requests_with_penalties_do_not_meet_others(mini):
    """Penalties and least numbers of tokens are of a request, and its slot's next one has none."""
    prompt = tuple(TEXTS[1].encode())
    common = dict(capacity=320, max_new_tokens=30, ignore_eos=True)
    alone = jaxspec.decode(mini, list(prompt), drafter="ar", **group_options(**common))
    common.pop("capacity")
    stop = dict(stop=(alone.tokens[2], alone.text[4:7]))
    kinds = [
        dict(presence_penalty=0.3, frequency_penalty=0.2, repetition_penalty=1.1),
        {},
        *(dict(presence_penalty=x, frequency_penalty=y) for x, y in ((0.9, -0.5), (-0.4, 0.5))),
        *(dict(repetition_penalty=x) for x in (0.8, 1.05, 1.15)),
        dict(temperature=0.8, repetition_penalty=1.2, min_tokens=4, **stop),
        stop,
    ]
    expected = [
        jaxspec.decode(
            mini, list(prompt), drafter="ar", capacity=320, **group_options(**common, **one)
        )
        for one in kinds
    ]
    assert len({tuple(one.tokens) for one in expected}) > len(kinds) - 2
    requests = [ServeRequest(prompt, **common, **one) for one in kinds]
    results = run(make(mini, 2), [*requests, requests[1]])
    for found, one in zip(results, [*expected, expected[1]], strict=True):
        tokens, text, finish = join(found)
        assert (tokens, text) == (one.tokens, one.text)
        assert finish == one.stats.finish_reason
    drafted = [sum(flag for update in found for flag in update.drafted) for found in results]
    assert drafted[0] and sum(drafted[2:7]) > 9


def test_samples_of_one_prompt_are_those_of_a_list(mini):
    options = dict(temperature=1.0, max_new_tokens=12)
    listed = jaxspec.decode(mini, [[5, 6, 7]] * 3, drafter="ar", **group_options(**options))
    requests = [ServeRequest((5, 6, 7), sequence=i, **options) for i in range(3)]
    results = run(make(mini, 2), requests)
    assert [join(updates)[0] for updates in results] == [one.tokens for one in listed]


def test_a_traced_request_returns_its_trees(mini):
    request = ServeRequest((5, 6, 7), max_new_tokens=20, trace=True)
    updates = run(make(mini, 2), [request])[0]
    for update in updates:
        assert update.rounds == 1
        assert len(update.tree.path) == len(update.tokens)
        assert update.tree.tree.parent[0] == -1
        drafts = [update.tree.tree.token[row] for row in update.tree.path[1:]]
        assert list(update.tokens[: len(drafts)]) == drafts


@SLOW
@pytest.mark.parametrize("options", [dict(drafter="ar"), dict(rule="ar")])
def test_an_autoregressive_engine_has_no_drafter(mini, options):
    request = ServeRequest((5, 6, 7), max_new_tokens=20)
    engine = make(mini, 2, **options)
    assert engine.drafter == "ar" and engine._device.state.decode.draft is None
    alone = jaxspec.decode(mini, [5, 6, 7], drafter="ar", max_new_tokens=20)
    updates = run(engine, [request] * 3)
    assert all(join(one)[0] == alone.tokens for one in updates)
    assert not any(flag for one in updates for update in one for flag in update.drafted)


@pytest.mark.usefixtures("drafting")
def test_plain_rounds_say_nothing_of_the_drafter(mini):
    """They verify one row of a slot, and leave what its drafted rows were worth as it was."""
    engine = make(mini, 2)
    run(engine, [ServeRequest((5, 6, 7), max_new_tokens=20)])
    known = engine._device.state.calibration
    known = np.asarray(known.hits), np.asarray(known.expected)
    assert known[1].any()
    run(engine, [ServeRequest((5, 6, 7), max_new_tokens=20, drafter="ar")])
    tree, accepted = engine._device.read_rounds()
    assert tree.size.max() <= 1 and accepted.count.max() <= 1
    found = engine._device.state.calibration
    np.testing.assert_array_equal((found.hits, found.expected), known)


@pytest.mark.thorough
def test_plain_rounds_verify_as_few_rows_as_requests_need(mini, monkeypatch):
    """On a CPU, where every row costs."""
    engine, rows = make(mini, 4, drafter="ar", budget=None, edges=None), []
    visit = engine._device.visit

    def watch(*arguments, **options):
        report = visit(*arguments, **options)
        rows.extend(zip((report.emitted > 0).sum(0).tolist(), report.rows.tolist(), strict=True))
        return report

    monkeypatch.setattr(engine._device, "visit", watch)
    run(engine, [ServeRequest((5, 6, 7), max_new_tokens=4 + 3 * index) for index in range(4)])
    smallest = {1: 1, 2: 2, 3: 4, 4: 4}
    assert rows and all(verified == smallest[live] for live, verified in rows if live)
    assert {verified for _, verified in rows} >= {1, 4}


@pytest.mark.usefixtures("drafting")
def test_a_new_request_is_not_judged_by_the_one_before(mini):
    engine = make(mini, 2)
    run(engine, [ServeRequest((5, 6, 7), max_new_tokens=20)])
    (slot,) = np.flatnonzero(engine._device.state.calibration.slot_expected)
    engine._device.feed(int(slot), [8, 9], 0, 1)
    found = engine._device.state.calibration
    assert (found.slot_hits[slot], found.slot_expected[slot]) == (0, 0) and found.expected.any()


@pytest.mark.parametrize(
    ("options", "weighs"),
    [
        (dict(rule="global"), True),
        (dict(rule="equal"), True),
        (dict(rule="fixed"), False),
        (dict(rule="ar"), False),
        (dict(drafter="ar"), False),
    ],
)
def test_only_rules_that_weigh_costs_may_stop_drafting(mini, monkeypatch, options, weighs):
    engine = make(mini, 2, **options)
    monkeypatch.setattr(engine._device, "compile", lambda rests: None)  # it is not run
    engine.warm_up()
    assert bool(engine._schedule._choices) == weighs


def test_the_next_turn_of_a_chat_reuses_its_slot(mini):
    engine, prompt = make(mini, 2), list(range(40, 180))
    first = join(run(engine, [ServeRequest(tuple(prompt), max_new_tokens=10, ignore_eos=True)])[0])
    assert engine.counters()["reused_tokens"] == 0
    longer = prompt + first[0] + list(range(300, 340))
    options = dict(max_new_tokens=16, ignore_eos=True, temperature=0.8, seed=4)
    second = join(run(engine, [ServeRequest(tuple(longer), **options)])[0])
    assert engine.counters()["reused_tokens"] == 128  # two chunks of a CPU
    plain = dict(drafter="ar", capacity=320, **options)
    assert second[0] == jaxspec.decode(mini, longer, **group_options(**plain)).tokens
    other = [7, *longer[1:]]
    third = join(run(engine, [ServeRequest(tuple(other), **options)])[0])
    assert engine.counters()["reused_tokens"] == 128
    assert third[0] == jaxspec.decode(mini, other, **group_options(**plain)).tokens


def test_rows_that_the_drafter_has_not_read_are_not_used_again(mini):
    """Plain rounds leave tokens to it for later; when the request ends, they are lost."""
    engine, prompt = make(mini, 2), list(range(40, 100))
    options = dict(max_new_tokens=10, ignore_eos=True)
    first = join(run(engine, [ServeRequest(tuple(prompt), drafter="ar", **options)])[0])
    longer = tuple(prompt + first[0] + [7, 8, 9])
    run(engine, [ServeRequest(longer, **options)])
    assert engine.counters()["reused_tokens"] == 0  # the target holds 69 rows, and a chunk has 64


@pytest.mark.parametrize(
    "drafter",
    ["dflash", pytest.param("eagle3", marks=SLOW), pytest.param("specblock", marks=SLOW)],
)
def test_samples_of_a_long_prompt_copy_it_from_each_other(drafter):
    params = load_short(drafter)
    prompt, options = tuple(range(40, 170)), dict(temperature=1.0, max_new_tokens=16)
    engine = make(params, 2)
    results = run(engine, [ServeRequest(prompt, sequence=i, **options) for i in range(3)])
    listed = jaxspec.decode(params, [list(prompt)] * 3, drafter="ar", **group_options(**options))
    assert [join(updates)[0] for updates in results] == [one.tokens for one in listed]
    counters = engine.counters()
    assert counters["reused_tokens"] >= 2 * 128
    assert counters["prompt_tokens"] + counters["reused_tokens"] == 3 * 129
    assert sum(counters["accepted"]) > 0


def test_prefixes_are_whole_chunks_and_leave_a_token_to_feed():
    held = HeldPrefixes(3, 4)
    held.hold(0, range(9), reader=1)
    held.hold(1, range(6), reader=1)
    count = functools.partial(held.count, reader=1)
    assert count(0, range(20)) == 8 and count(1, range(20)) == 4
    assert count(0, range(9)) == 4 and count(0, range(5)) == 0
    assert count(0, [*range(8), 99, 99]) == 4 and count(2, range(9)) == 0
    assert held.find(range(20), reader=1) == (0, 8)
    assert held.choose_slot([1, 2], range(20), reader=1) == 1
    held.free(1)
    assert held.choose_slot([1, 2], [50, 51], reader=1) == 2


def test_rows_that_the_drafter_never_read_serve_requests_without_it_alone():
    held = HeldPrefixes(2, 4)
    held.hold(0, range(9), reader=0)
    held.hold(1, range(5), reader=1)
    assert held.find(range(20), reader=0) == (0, 8)
    assert held.find(range(20), reader=1) == (1, 4)
    assert held.choose_slot([0, 1], range(20), reader=1) == 1
