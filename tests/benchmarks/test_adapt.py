"""`jaxspec adapt` and `python -m benchmarks adapt`: streams, figures by hand, and the commands
themselves.
"""

import itertools
import json

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.adapt.adapt_plot import plot_windows
from benchmarks.adapt.evidence_cost import measure_evidence, render_evidence
from benchmarks.adapt.measure_adapt import draw_turns, measure_adapt, one_of_each_size
from benchmarks.adapt.modelled import make_model
from benchmarks.adapt.products import count_products
from benchmarks.adapt.random_drafter import add_random_drafter
from benchmarks.adapt.streams import find_cluster, make_stream
from benchmarks.adapt.summarise_adapt import render_adapt, summarise
from benchmarks.adapt.update_cost import _sum_updates, measure_updates, render_updates
from jaxspec.cli import main as cli
from jaxspec.core.runtime.compilations import compilations
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.view.adaptation import plot_events

PROMPTS = [
    LabelledPrompt(domain, f"{domain} {number}")
    for domain in ("prose", "code", "math")
    for number in range(10)
]


def test_blocks_and_shuffled_hold_the_same_prompts():
    blocks, shuffled = (make_stream(name, PROMPTS, 6, 1) for name in ("blocks", "shuffled"))
    assert [item.domain for item in blocks] == ["prose"] * 6 + ["code"] * 6 + ["math"] * 6
    assert sorted(i.content for i in blocks) == sorted(i.content for i in shuffled)
    assert {item.block for item in shuffled} == {0} and shuffled != blocks
    assert make_stream("blocks", PROMPTS, 6, 1) == blocks != make_stream("blocks", PROMPTS, 6, 2)


def test_passes_repeat_one_order():
    items, once = (make_stream(name, PROMPTS, 4, 3) for name in ("passes", "shuffled"))
    assert len(items) == 4 * len(once) and [item.block for item in items[:13]] == [0] * 12 + [1]
    for number in range(4):
        block = items[12 * number : 12 * (number + 1)]
        assert [item.content for item in block] == [item.content for item in once]


def test_passes_may_be_many_and_of_one_domain():
    items = make_stream("passes", PROMPTS[:10], 4, 3, passes=8)
    assert [item.block for item in items] == [number for number in range(8) for _ in range(4)]
    assert {item.domain for item in make_stream("shuffled", PROMPTS[:10], 4, 3)} == {"prose"}
    with pytest.raises(ValueError, match="passes is 0: give an integer at least 1"):
        make_stream("passes", PROMPTS, 4, 3, passes=0)


def test_a_returning_stream_has_other_prompts_at_its_end():
    items = make_stream("returning", PROMPTS, 5, 0)
    first, last = ({item.content for item in items if item.block == b} for b in (0, 2))
    assert len(first) == len(last) == 5 and not first & last
    assert [item.domain for item in items] == ["prose"] * 5 + ["code"] * 5 + ["prose"] * 5


def test_a_cluster_shares_identifiers():
    texts = [
        "alpha_beta gamma_delta",
        "alpha_beta other",
        "nothing here",
        "gamma_delta alpha_beta x",
    ]
    found = find_cluster(texts, 2, np.random.default_rng(3))
    shared = [len(set(text.split()) & set(found[0].split())) for text in texts]
    assert len(found) == 2 and set(found[1].split()) & set(found[0].split())
    assert max(shared) >= 2
    items = make_stream("identifiers", PROMPTS, 8, 0)
    assert len({item.content for item in items if item.block == 1}) == 1


def test_mistakes_of_streams_are_named():
    with pytest.raises(
        ValueError, match="unknown stream 'rows': choose one of blocks, shuffled, passes"
    ):
        make_stream("rows", PROMPTS, 2, 0)
    with pytest.raises(ValueError, match="single domain"):
        make_stream("blocks", PROMPTS[:10], 2, 0)


def test_modelled_sizes():
    """Qwen3-8B and a SpecBlock-like drafter of .37 billion weights, .13 of them in its head."""
    model = make_model("qwen3-8b", "h100")
    assert model.target == pytest.approx(8.19e9, rel=0.01)
    assert model.drafter == pytest.approx(0.37e9, rel=0.03) and model.head == 32768 * 4096
    # A full step runs the trunk over four segments of 128 tokens with four slots each: once, twice
    # for its gradient, and once as it was deployed. A head-only one from kept outputs projects 256
    # positions by both heads, and finds the gradient of one.
    trunk, head = model.drafter - model.head, model.head
    assert model.step_flops("full", 256, True) == 8 * (2048 * trunk + 256 * head)
    assert model.step_flops("full", 256, True, False) == 6 * (2048 * trunk + 256 * head)
    assert model.step_flops("head", 256, False) == 6 * 256 * head
    assert model.step_flops("head", 256, True) == 6 * 256 * head + 4 * 2048 * trunk
    assert model.step_bytes("full", True) == 26 * model.drafter
    assert model.step_bytes("head", True) - model.step_bytes("head", False) == 4 * trunk
    assert model.step_seconds("head", 256, False) == pytest.approx(0.29e-3 + 1.2e-3, rel=0.05)
    full, again = (model.step_seconds(action, 128, True) for action in ("full", "head"))
    assert 6.5 < full / model.step_seconds("head", 128, False) < 7.5
    assert full < 2.5 * again  # without the trunk's outputs, most of a full step's time
    assert model.read_seconds(128) < model.pass_seconds(128) / 5
    assert model.copy_seconds == pytest.approx(2 * model.drafter / 350e9, rel=0.01)
    with pytest.raises(ValueError, match="unknown architecture 'x': choose one of qwen3-0.6b"):
        make_model("x")


def record(arm, seed, block, seconds, update=None, rounds=10):
    one = {
        "tokens": 30, "rounds": rounds, "passes": 0, "reads": 0, "decode_seconds": seconds, "evidence_seconds": 0.0,
        "update_seconds": 0.0, "version": 0, "block": block, "domain": str(block), "restored": False,
    }  # fmt: skip
    if update:
        one |= {"update": update, "steps": 4, "update_seconds": update["seconds"], "passes": 6}
        one |= {"reads": 2, "redrafts": False, "anchored": True}
    return one


def test_figures_by_hand():
    update = {"action": "head", "seconds": 1.0, "up": 1, "down": 2, "held": 9, "published": None}
    cells = {
        "never": [(0, 2.0, None), (0, 2.0, None), (1, 4.0, None)],
        "always-head": [(0, 3.0, None), (0, 3.0, None), (1, 1.0, None)],
        "bandit-paired": [(0, 2.0, None), (0, 2.0, update), (1, 1.0, None)],
    }
    runs = [
        {"arm": arm, "seed": 0, "forgetting": 3.0,
         "queries": [record(arm, 0, block, seconds, given) for block, seconds, given in rows]}
        for arm, rows in cells.items()
    ]  # fmt: skip
    report = {"arms": list(cells), "runs": runs, "stream": "blocks"}
    report = summarise(report, make_model())
    never, head, ours = report["summary"]
    assert never["measured"]["gain"] == 1 and never["measured"]["share_of_oracle"] == 0
    assert head["measured"]["gain"] == pytest.approx(8 / 7)
    # The oracle never updates in block 0 (4 s) and takes the head in block 1 (1 s).
    assert ours["measured"]["oracle"] == pytest.approx(8 / 5)
    assert ours["measured"]["share_of_oracle"] == pytest.approx((8 - 6) / 3)
    assert ours["measured"]["regret"] == pytest.approx(1.0)
    assert (ours["updates"], ours["refused"]) == (1, 1) and ours["share"] == pytest.approx(1 / 6)
    assert ours["flops"] == 4 * make_model().step_flops("head", 128, False)
    # Thirty rounds; four steps from kept outputs, six passes and two reads beside them: on a second
    # device, which sends nothing.
    model = make_model()
    extra = 4 * model.step_seconds("head", 128, False)
    extra += 6 * model.pass_seconds(128) + 2 * model.read_seconds(128)
    rounds = 30 * model.round_seconds
    assert ours["modelled"]["gain"] == pytest.approx(rounds / (rounds + extra))
    assert ours["modelled_share"] == pytest.approx(extra / (rounds + extra))
    assert ours["two_devices"]["gain"] == 1
    update["published"] = 1
    ours = summarise(report, model)["summary"][2]
    assert ours["two_devices"]["gain"] == pytest.approx(rounds / (rounds + model.copy_seconds))
    assert never["blocks"] == [3.0, 3.0]
    along = report["along"]["bandit-paired"]
    assert along[0] == 1 and along[2] == pytest.approx(ours["modelled"]["gain"])
    assert along[1] == pytest.approx(20 * model.round_seconds / (20 * model.round_seconds + extra))
    assert render_adapt(report).splitlines()[-1].split() == ["bandit-paired", "3.000", "3.000"]
    assert "bandit-paired" in render_adapt(report, markdown=True)
    # Where no arm learned, the oracle gained nothing, and there is no share of it.
    report = summarise(
        report | {"arms": ["never", "bandit-paired"], "runs": [runs[0], runs[2]]}, make_model()
    )
    assert report["summary"][1]["measured"]["share_of_oracle"] is None


@pytest.fixture(scope="module")
def measured():
    prompts = [LabelledPrompt(str(i % 2), toys.PROMPTS[i % 4]) for i in range(4)]
    report = measure_adapt(
        toys.make_params("medusa"),
        prompts,
        arms=("never", "always-head"),
        queries=4,
        seeds=2,
        probes=1,
        options=toys.ADAPT,
        decode=toys.FLAT,
    )
    return summarise(report, make_model())


@pytest.mark.thorough
def test_streams_are_served(measured, tmp_path):
    never, head = measured["summary"]
    assert never["updates"] == 0 and head["updates"] > 0 and head["flops"] > 0
    assert len(measured["windows"]["never"]) == 1 and len(measured["runs"]) == 4
    json.dumps(measured)
    plot_windows(measured, tmp_path / "windows.png")
    assert (tmp_path / "windows.png").stat().st_size > 5_000


def test_what_evidence_costs():
    """By hand: 20 and 60 ms, of which 1 and 3 are for gathering and 2 and 2 for cutting."""
    row = {"domain": "a", "plain": 0.020, "gathering": 0.021, "cutting": 0.002, "equal": True}
    other = {"domain": "a", "plain": 0.060, "gathering": 0.063, "cutting": 0.002, "equal": False}
    lines = [line.split() for line in render_evidence({"prompts": [row, other]}).splitlines()]
    assert lines[1] == ["without", "evidence", "40.0", "100.0"]
    assert lines[2][:4] == ["gathering", "adds", "2.0", "5.0"]
    assert lines[3] == ["cutting", "adds", "2.0", "5.0", "[3.3,", "10.0]"]
    assert lines[4][-2:] == ["1", "prompts"]


@pytest.mark.thorough
def test_evidence_is_measured():
    prompts = [LabelledPrompt("x", tokens) for tokens in toys.PROMPTS[:2]]
    given = {"options": toys.ADAPT, "decode": toys.FLAT}
    report = measure_evidence(toys.make_params("medusa"), prompts, repeats=2, **given)
    assert [row["equal"] for row in report["prompts"]] == [True, True]
    assert all(row["cutting"] > 0 < row["plain"] for row in report["prompts"])
    json.dumps(report)
    with pytest.raises(ValueError, match="2 prompts, 0 times: give at least one of both"):
        measure_evidence(toys.make_params("medusa"), prompts, repeats=0, **given)


def test_what_updates_cost():
    """By hand: a query of 200 ms; updates of eight steps of 100 or 300 ms, and tests of 50 ms."""
    parts = {"head": 0.1, "full": 0.3, "keep": 0.2, "test": 0.05}
    report = {"query": 0.2, "steps": 8, "tests": 16, "ratio": 3.0, "interval": [2.0, 4.0]}
    report["parts"] = {
        name: {"seconds": took, "compiles": 9.0, "operations": 2e9 if name == "head" else None}
        for name, took in parts.items()
    }
    # Eight batches are tested twice; after a full update their outputs are drafted again.
    report["updates"] = _sum_updates(report["parts"], 8, 8)
    assert report["updates"] == {"head": pytest.approx(1.6), "full": pytest.approx(3.2 + 1.6)}
    report["positions"] = 99
    text = render_updates(report)
    lines = [line.split() for line in text.splitlines()]
    assert lines[1] == ["query", "200.0", "1.00", "-", "-"]
    assert lines[2] == ["step", "of", "head", "100.0", "0.50", "9.0", "2.00"]
    assert lines[3] == ["step", "of", "full", "300.0", "1.50", "9.0", "-"]
    assert lines[7] == ["update", "of", "full", "4800.0", "24.00", "-", "-"]
    assert "a full step takes as long as 3.00 [2.00, 4.00] head-only ones, 99 positions" in text


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["medusa", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_updates_are_measured(method):
    prompts = [LabelledPrompt("x", tokens) for tokens in toys.PROMPTS[:2]]
    builder = {"medusa": "best_first", "eagle3": "dynamic"}[method]
    given = {"options": toys.ADAPT, "decode": toys.FLAT | {"builder": builder}}
    report = measure_updates(toys.make_params(method), prompts, repeats=2, **given)
    assert (report["steps"], report["tests"]) == (8, 16)
    took = {name: one["seconds"] for name, one in report["parts"].items()}
    kept = {"again", "keep"} if method == "eagle3" else set()
    assert set(took) == {"head", "full", "test"} | kept and min(took.values()) > 0 < report["query"]
    operations = {name: report["parts"][name]["operations"] for name in ("head", "full")}
    assert operations["full"] > operations["head"] * (8 if kept else 1)
    json.dumps(report)
    with pytest.raises(ValueError, match="0 prompts, 7 times: give at least one of both"):
        measure_updates(toys.make_params(method), [], **given)


def test_a_random_drafter_has_the_widths_of_its_target():
    params = add_random_drafter(toys.make_params("medusa"), 3)
    config, target = params.spec.drafter("specblock"), params.spec.target
    assert params.spec.default_drafter == "specblock" and config.num_layers == 3
    assert config.hidden_size == target.hidden_size
    head = params.drafter("specblock")["params"]["lm_head"]
    assert head.shape == (target.hidden_size, max(target.vocab_size // 4, 10))


def test_products_are_counted():
    """A product of [3, 5] and [5, 7] takes 210 operations; a scan of four takes four times as many, a
    branch the dearer one, and a gradient three products."""
    a, b = jnp.ones((3, 5)), jnp.ones((5, 7))

    def scan(a, b):
        return jax.lax.scan(lambda carry, _: (carry, a @ b), 0.0, length=4)[1]

    def branch(a, b):
        return jax.lax.cond(a.sum() > 0, lambda: a @ b, lambda: jnp.zeros((3, 7)))

    def slope(a, b):
        return jax.grad(lambda a, b: (a @ b).sum(), (0, 1))(a, b)

    for function, wanted in ((jnp.matmul, 210), (scan, 840), (branch, 210), (slope, 630)):
        assert count_products(function, a, b) == wanted, function


def test_arms_take_turns_where_the_clock_counts():
    """So that no arm meets a slower machine. They do the same as one after the other."""
    prompts = [LabelledPrompt(str(i % 2), toys.PROMPTS[i % 4]) for i in range(4)]
    given = {"queries": 2, "seeds": 1, "probes": 1, "options": toys.ADAPT, "decode": toys.FLAT}
    arms, params, shown = ("never", "always-head"), toys.make_params("medusa"), []
    found = [
        measure_adapt(params, prompts, arms=arms, prices=prices, progress=shown.append, **given)
        for prices in (None, make_model())
    ]
    assert [line.split(":")[0] for line in shown] == (
        ["seed 0, never, always-head"] * 4 + ["seed 0, never"] * 4 + ["seed 0, always-head"] * 4
    )
    turns, apart = (
        [[(q["tokens"], q["rounds"], q["version"]) for q in run["queries"]] for run in one["runs"]]
        for one in found
    )
    assert turns == apart and turns[1][-1][2] > 0
    assert found[0]["device"]["platform"] == "cpu" and "jax" in found[0]["versions"]


def test_no_arm_always_follows_the_same_one():
    turns = draw_turns(("never", "osd", "random"), 60, seed=1)
    pairs = {pair for order in turns for pair in itertools.pairwise(order)}
    assert len(pairs) == 6 and all(len(set(order)) == 3 for order in turns)
    assert turns != draw_turns(("never", "osd", "random"), 60, seed=2)


@pytest.mark.thorough
def test_no_query_compiles():
    """Not even one whose cache is of another size than the first query's."""
    params, counts = toys.make_params("medusa"), []
    prompts = [LabelledPrompt("short", [1] * 3), LabelledPrompt("long", [3] * 300)]
    decode = toys.FLAT | {"budget": 23}  # of no other test
    given = {"queries": 1, "seeds": 1, "probes": 1, "options": toys.ADAPT, "decode": decode}
    sizes = one_of_each_size(params, [[1] * 3, [2] * 5, [3] * 300], "medusa", decode)
    assert sizes == [[1] * 3, [3] * 300]
    measure_adapt(
        params,
        prompts,
        arms=("never", "always-head"),
        progress=lambda line: counts.append(compilations()),
        **given,
    )
    assert len(counts) == 2 and {*counts} == {compilations()}


def test_kept_streams_are_not_served_again(tmp_path):
    """Also after a process that was killed while it wrote."""
    path, shown = tmp_path / "runs.jsonl", []
    prompts = [LabelledPrompt(str(i % 2), toys.PROMPTS[i % 4]) for i in range(4)]
    given = {"queries": 2, "probes": 1, "options": toys.ADAPT, "decode": toys.FLAT}
    given |= {"keep": path, "progress": shown.append}
    params = toys.make_params("medusa")
    first = measure_adapt(params, prompts, arms=("never",), seeds=1, **given)
    path.write_text(path.read_text() + '{"arm": "alw')
    both = measure_adapt(params, prompts, arms=("never", "always-head"), seeds=1, **given)
    assert both["runs"][0] == json.loads(json.dumps(first["runs"][0]))
    assert [line.split(":")[0] for line in shown] == ["seed 0, never"] * 4 + [
        "seed 0, always-head"
    ] * 4
    assert [json.loads(line).get("arm") for line in path.read_text().splitlines()] == [
        None,
        "never",
        "always-head",
    ]
    for change in ({"queries": 3}, {"decode": toys.FLAT | {"seed": 9}}):
        with pytest.raises(ValueError, match="holds runs with (queries 2|decode .*), not .*: give"):
            measure_adapt(params, prompts, arms=("never",), **given | change)
    with pytest.raises(ValueError, match="holds runs with prompts"):
        measure_adapt(params, prompts[:2], arms=("never",), **given)
    path.write_text("[]\n")
    with pytest.raises(ValueError, match="holds no runs of streams: give another file"):
        measure_adapt(params, prompts, arms=("never",), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arms": ("never", "oracle")}, "the oracle knows results beforehand"),
        ({"queries": 0}, "queries is 0: give an integer at least 1"),
        ({"seeds": 0}, "seeds is 0: give an integer at least 1"),
        ({"stream": "river"}, "unknown stream 'river'"),
    ],
)
def test_mistakes_of_measurements_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        measure_adapt(None, PROMPTS, **given)


def test_events_are_plotted(tmp_path):
    update = {"action": "head", "published": 1}
    events = [
        {"tokens": 9 + i, "rounds": 4, "restored": 1 if i == 7 else None}
        | ({"update": update} if i == 3 else {})
        for i in range(9)
    ]
    plot_events(events, tmp_path / "events.png")
    assert (tmp_path / "events.png").stat().st_size > 5_000


def test_false_rollbacks_are_printed(capsys):
    assert main(["adapt", "--null", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 streams of 600") and lines[-1].split()[:2] == [
        "bandit-paired",
        "0",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adapt"], "adapt needs prompts"),
        (["adapt", "--null", "0"], "--null is 0: give at least 1"),
        (
            ["adapt", "--null", "1", "--plot", "x.png"],
            "makes neither --plot, --report nor --keep",
        ),
        (
            ["adapt", "--prompts", __file__, "--evidence", "1", "--report", "x.md"],
            "--evidence makes neither --plot, --report nor --keep",
        ),
        (
            ["adapt", "--prompts", __file__, "--updates", "1", "--plot", "x.png"],
            "--updates makes neither --plot, --report nor --keep",
        ),
        (["adapt", "--prompts", __file__, "--layers", "3"], "--layers is for --updates"),
        (["adapt", "--prompts", __file__, "--arch", "y"], "unknown architecture 'y'"),
        (["adapt", "--prompts", __file__, "--head-room", "0"], "--head-room is 0"),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head-rate", "nan"], "--head-rate is nan"),
        (["--json", "."], "--json: . is a directory"),
        (["--decider", "oracle"], "the oracle knows results beforehand"),
    ],
)
def test_mistakes_of_the_users_command_are_named(arguments, message, capsys):
    assert cli.main(["adapt", "--prompts", __file__, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_adapt_shows_every_query(tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    texts = ["def area(width, height):", "Once upon a time", "import os\n"]
    prompts.write_text("".join(json.dumps({"prompt": t, "domain": "x"}) + "\n" for t in texts))
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--drafter", "jetspec", "--decider", "always-head", "--head-room", "4"]
    options += ["--budget", "16", "--max-new-tokens", "24", "--json", str(out), "--plot", str(plot)]
    assert cli.main(["adapt", "--prompts", str(prompts), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "head update published" in lines[1] and "tokens per round" in lines[-1]
    text = out.read_text()
    assert len(json.loads(text)["events"]) == 3 and plot.exists()
    assert not any(word in text for word in ("area", "Once", "import"))
