"""Rounds of some neighbouring slots, and programs that are compiled while requests run."""

import pytest
from serve_toys import PROMPT, run
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.serve.on_device.programs import Variant
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.serve.scheduling.warming import cover, find_first
from jaxspec.tuner.serving.costs import Costs, guess_costs
from jaxspec.tuner.serving.draft_choice import DraftChoice

# The programs for both slots are those of test_engine.py.
SHAPE = dict(slots=2, capacity=320, budget=8, edges=(2, 16), rounds=4, visit_seconds=None)


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture
def visits(monkeypatch):
    """Let engines draft whenever a request wants it, and list (first, part, drafts) of visits."""
    for name in ("wants_drafts", "wants_followers"):
        monkeypatch.setattr(DraftChoice, name, lambda choice: True)
    monkeypatch.setattr(
        "jaxspec.serve.scheduling.schedule.read_costs",
        lambda device, store: Costs((1.0, 1.001), (0.9,)),
    )
    return []


def watch(engine, visits):
    """List an engine's visits."""
    visit = engine._device.visit

    def listed(*args, **where):
        visits.append((where["first"], where["part"], args[2]))
        return visit(*args, **where)

    engine._device.visit = listed


def requests(count):
    prompts = [(*PROMPT, index) for index in range(5, 5 + count)]
    return [ServeRequest(prompt, max_new_tokens=12, ignore_eos=True) for prompt in prompts]


@pytest.fixture
def expected(mini):
    options = dict(drafter="ar", max_new_tokens=12, ignore_eos=True)
    return [
        jaxspec.decode(mini, list(one.tokens), **group_options(**options)).tokens
        for one in requests(2)
    ]


def test_one_request_of_two_slots_drafts_for_its_slot_alone(mini, visits, expected):
    engine = make_engine(mini, **SHAPE)
    engine.warm_up()
    watch(engine, visits)
    for _ in range(2):  # the second one in another slot
        ((tokens, _, drafted, _),) = run(engine, requests(1)[0])
        assert tokens == expected[0] and any(drafted)
    assert {part for _, part, _ in visits} == {1} and all(drafts for *_, drafts in visits)
    assert len({first for first, *_ in visits}) == 2
    assert engine.counters()["compiles_after_warm_up"] == 0


def test_requests_take_turns_until_the_program_for_all_of_them_is_there(mini, visits, expected):
    engine = make_engine(mini, **SHAPE)
    engine.warm_up()
    watch(engine, visits)
    # Nothing is compiled for two slots, and nothing will be.
    engine._compiler.want = lambda variants: None
    one, other = requests(2)
    begun = engine.submit(one)
    made = [token for update in engine.visit() for token in update.tokens]
    tokens = {begun: made, engine.submit(other): []}
    while not engine.idle:
        for update in engine.visit():
            tokens[update.id] += update.tokens
    assert list(tokens.values()) == expected
    assert {part for _, part, _ in visits} == {1} and any(drafts for *_, drafts in visits)


def test_more_requests_go_on_without_drafts_until_then(mini, visits, expected, monkeypatch):
    monkeypatch.setattr("jaxspec.serve.scheduling.schedule._ALONE", 1)
    engine = make_engine(mini, **SHAPE)
    engine.warm_up()
    watch(engine, visits)
    engine._compiler.want = lambda variants: None
    found = run(engine, *requests(2))
    assert [tokens for tokens, *_ in found] == expected
    assert (0, 2, False) in visits


def test_a_load_is_tried_if_what_drafts_gave_elsewhere_would_pay_there(mini, visits):
    """Drafted rounds of both slots take 1.1, plain ones 0.9: a slot must get 1.22 tokens."""
    engine = make_engine(mini, **SHAPE)
    engine.warm_up()
    schedule = engine._schedule
    assert schedule._may_pay(1) and not schedule._may_pay(2)  # nothing drafted yet
    for made, pays in ((1.1, False), (1.4, True)):
        schedule._made[:] = 100 * made, 100
        assert schedule._may_pay(2) is pays
    assert schedule._may_pay(1)
    schedule._made[:] = 110, 100
    watch(engine, visits)
    run(engine, *requests(2))
    both = Variant("visit", 1, 2)
    assert both not in engine._compiler._begun and not any(drafts for *_, drafts in visits)
    schedule._made[:] = 1600, 1000
    run(engine, *requests(2))
    assert both in engine._compiler._begun
    engine._compiler.wait([both])


def test_what_rounds_take_while_programs_compile_teaches_no_costs(mini, visits, monkeypatch):
    engine = make_engine(mini, **SHAPE)
    engine.warm_up()
    live, pace = engine._schedule._live[1], engine._schedule._pace
    monkeypatch.setattr(engine._compiler, "list_missing", lambda: [Variant("clean")])
    run(engine, requests(1)[0])
    assert live.drafted.tolist() == pytest.approx([1.0, 1.001])
    assert 0 < pace.seconds(drafts=True) < 0.5  # how long a visit may be goes by the clock
    monkeypatch.undo()
    run(engine, requests(1)[0])
    assert live.drafted[0] < 1.0


@pytest.mark.parametrize(
    ("variant", "drafters", "words"),
    [
        (Variant("feed", 1), ["dflash", "medusa"], "prompts with dflash"),
        (Variant("feed", 2), ["dflash", "medusa"], "prompts with medusa"),
        (Variant("score", 0), ["dflash"], "log-probabilities of prompts without a drafter"),
        (Variant("feed", 1), ["ar"], "prompts without a drafter"),
        (Variant("visit", 1, 2), ["dflash", "medusa"], "rounds of 2 slots with dflash, medusa"),
        (Variant("visit", 0, 1), ["dflash"], "rounds of 1 slot without a drafter"),
        (Variant("clean"), ["dflash"], "clean a slot"),
    ],
)
def test_programs_are_described_with_their_drafters(variant, drafters, words):
    assert variant.describe(drafters) == words


def test_requests_run_plain_before_the_rest_is_compiled(mini, expected, monkeypatch):
    engine = make_engine(mini, **SHAPE)
    device, compile = engine._device, engine._device.compile
    first = find_first(device, rests=True)
    assert first == [Variant("feed", 0), Variant("visit", 0, 1)]

    def only_first(variant):
        if variant not in first:
            raise RuntimeError("not now")
        compile(variant)

    monkeypatch.setattr(device, "compile", only_first)
    engine._compiler._device = device
    monkeypatch.setattr(engine._compiler, "has", lambda variant: variant in first)
    engine.warm_up(wait=False)
    ((tokens, _, drafted, _),) = run(engine, requests(1)[0])
    assert tokens == expected[0] and not any(drafted)


def test_the_smallest_part_covers_slots():
    parts = (1, 2, 4, 8)
    cases = {(5,): 1, (2, 3): 2, (1, 2): 4, (3, 4): 8, (0, 1, 2, 3): 4, (4, 7): 4}
    assert {slots: cover(slots, parts) for slots in cases} == cases


def test_a_part_has_its_share_of_the_rows():
    rules = Rules("global", (4, 8, 16, 32, 64), (1, 2))
    assert rules.of_part(1, 8).edges == (4, 8)
    assert rules.of_part(2, 8).edges == (4, 8, 16)
    assert rules.of_part(8, 8) == rules
    assert Rules("fixed", (2, 16)).of_part(1, 2).edges == (2, 8)


def test_costs_of_more_slots_are_guessed_from_those_of_one():
    # A row costs 1 and drafting for a slot 5.
    known = Costs((10.0 + 5 + 3, 10.0 + 5 + 7), (10.0,), 0.5)
    rules = Rules("global", (4, 8, 16), (1, 2))
    guessed = guess_costs(known, (4, 8), 2, rules)
    assert guessed.drafted == pytest.approx((10 + 10 + 3, 10 + 10 + 7, 10 + 10 + 15))
    assert guessed.plain == pytest.approx((10, 11)) and guessed.visit == 0.5
