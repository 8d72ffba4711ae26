"""Claims as records: each has a rule and commands that parse; runs go on; pages are made."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.reproduce.claim import NOT_RUN, VERDICTS, Claim, Finding
from benchmarks.reproduce.claims.registry import CLAIMS, PAPERS, choose_claims
from benchmarks.reproduce.measurement import Measurement, Setting, check_command
from benchmarks.reproduce.measurements import MEASUREMENTS, with_sources
from benchmarks.reproduce.page import make_page, read_results
from benchmarks.reproduce.reproduce_command import list_claims
from benchmarks.reproduce.runner import find_obstacle, measure, order_claims, reproduce
from jaxspec.cli.main import main

ALL = (
    "dflash",
    "draft_model",
    "eagle3",
    "falcon",
    "jetspec",
    "medusa",
    "parallelspec",
    "specblock",
)


def make_setting(folder: Path, **options) -> Setting:
    for name in ("prompts.jsonl", "corpus.jsonl"):
        (folder / name).write_text(json.dumps({"domain": "code", "text": "def f"}) + "\n")
    given = {"model": "mini", "drafters": ALL, "scale": "small", "out": folder / "out"}
    given |= {"prompts": folder / "prompts.jsonl", "corpus": folder / "corpus.jsonl"}
    return Setting(**given | options)


def test_every_paper_has_its_claims():
    counts = {paper: sum(name.startswith(f"{paper}/") for name in CLAIMS) for paper in PAPERS}
    assert min(counts.values()) >= 15 and sum(counts.values()) >= 95
    assert sum(one.decide is not None for one in CLAIMS.values()) >= 85


def test_ids_are_a_paper_a_place_and_what_is_claimed():
    for name, claim in CLAIMS.items():
        paper, *rest = name.split("/")
        assert paper in PAPERS and len(rest) == 2 and name == claim.id.lower()
        assert claim.says.endswith(".") and claim.scale.startswith(("Yes", "No")) and claim.paper


def test_a_claim_has_a_rule_or_the_reason_why_it_has_none():
    with pytest.raises(ValueError, match="a/b/c: give a rule and its measurements"):
        Claim(id="a/b/c", says="It.", paper="1", scale="No.")


@pytest.mark.parametrize("name", MEASUREMENTS)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_commands_are_understood(name, scale, tmp_path):
    """The parser of each command reads its words, as the runner passes them."""
    setting = make_setting(tmp_path, scale=scale)
    (tmp_path / "out" / name).mkdir(parents=True)
    commands = MEASUREMENTS[name].commands(setting)
    assert commands
    for words in commands:
        check_command(words)


def test_a_wrong_command_is_noticed():
    with pytest.raises(SystemExit):
        check_command(("benchmarks", "gaps", "mini", "--no-such-option"))


def test_measurements_that_claims_need_exist():
    for claim in CLAIMS.values():
        assert set(with_sources(claim.needs)) <= set(MEASUREMENTS)
    assert {name for one in CLAIMS.values() for name in with_sources(one.needs)} == set(
        MEASUREMENTS
    )


def test_requests_are_ids_or_their_beginnings():
    assert [one.id for one in choose_claims(["jetspec/table-8/mean-gap-is-smaller"])] == [
        "jetspec/table-8/mean-gap-is-smaller"
    ]
    assert len(choose_claims(["jetspec/table-8"])) == 3
    assert len(choose_claims(["jetspec/table-1"])) < len(choose_claims(["jetspec"]))
    assert all("/table-1/" in one.id for one in choose_claims(["jetspec/table-1"]))


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("jetspec/table-88", "jetspec/table-8"),
        ("jetspek", "jetspec"),
        ("ltd/table-1/beats-grid", "ltd/"),
    ],
)
def test_an_unknown_id_gets_the_nearest_one(given, near):
    with pytest.raises(ValueError, match=f"is no claim: did you mean '{near}"):
        choose_claims([given])


def test_a_mistake_is_one_line_and_status_2(capsys):
    assert main(["reproduce", "jetspec/tabel-8"]) == 2
    assert (
        "'jetspec/tabel-8' is no claim: did you mean 'jetspec/table-8'?" in capsys.readouterr().err
    )
    assert main(["reproduce"]) == 2
    assert "reproduce needs claims: give ids, --all, --list or --page" in capsys.readouterr().err


def test_without_a_clone_the_command_says_how_to_get_one(monkeypatch, capsys):
    from jaxspec.cli import reproduce as command

    monkeypatch.setattr(command, "__file__", "/nowhere/jaxspec/cli/reproduce.py")
    assert main(["reproduce", "--list"]) == 2
    assert "clone the repository" in capsys.readouterr().err


def test_what_cannot_be_run_has_a_reason(tmp_path):
    own = make_setting(tmp_path, drafters=("jetspec",), corpus=None)
    reasons = {name: find_obstacle(one, own) for name, one in CLAIMS.items()}
    assert reasons["bastion/figure-8/best-first-beats-beam"] == "mini has no drafter dflash"
    assert reasons["jetspec/table-4/reverse-kl-is-worst"] == "it trains: give --corpus FILE"
    assert reasons["jetspec/table-10/entropy-collapses"] is None
    other = dataclasses.replace(own, model="org/large")
    reason = find_obstacle(CLAIMS["jetspec/table-10/entropy-collapses"], other)
    assert reason == "it is not sized for org/large: give --scale full, on a GPU"


def test_the_list_tells_needs_costs_and_reasons(tmp_path):
    setting = make_setting(tmp_path)
    shown = list_claims(list(CLAIMS.values()), setting)
    assert all(name in shown for name in CLAIMS)
    assert (
        "[1 min: gaps]" in shown
        and "[not run: records hold no entropies]" in shown
        and "hours" in shown
    )


class Stop(Exception):
    """Ctrl-C in the middle of a run."""


@pytest.fixture
def toys(monkeypatch):
    """Two measurements, of two commands and of one that reads the first, and three claims."""

    def decide(reports):
        (name, found), *_ = reports.items()
        return Finding("confirmed", f"{name}: {found['b']['x']}", found["b"]["x"], (1.0, 3.0))

    def commands(name, files):
        return lambda setting: [("toy", setting.at(name, f"{file}.json")) for file in files]

    measured = {
        name: Measurement(
            name=name,
            summary="a toy",
            commands=commands(name, files),
            minutes={"mini": minutes},
            after=after,
        )
        for name, files, minutes, after in (("one", "ab", 2, ()), ("two", "b", 1, ("one",)))
    }
    for module in ("runner", "measurements", "page"):
        monkeypatch.setattr(f"benchmarks.reproduce.{module}.MEASUREMENTS", measured)
    rest = {"says": "It is so.", "paper": "2", "scale": "No: it is a toy."}
    claims = [
        Claim(id="jetspec/table-1/dear", needs=("two",), decide=decide, **rest),
        Claim(id="jetspec/table-1/cheap", needs=("one",), decide=decide, **rest),
        Claim(id="jetspec/table-1/never", waits="it waits", **rest),
    ]
    monkeypatch.setattr("benchmarks.reproduce.page.CLAIMS", {one.id: one for one in claims})
    return claims


class Runner:
    """Runs toy commands, which write a file; fails or stops before some of them."""

    def __init__(self, stop: str = "", fail: str = ""):
        self.ran, self.stop, self.fail = [], stop, fail

    def __call__(self, words, log):
        name = "/".join(Path(words[1]).parts[-2:])
        if name == self.stop:
            raise Stop
        if name == self.fail:
            raise RuntimeError("jaxspec: error: no such file")
        self.ran.append(name)
        Path(words[1]).write_text('{"x": 2.0}')


def test_cheap_claims_come_first(toys, tmp_path):
    names = [one.id.rpartition("/")[2] for one in order_claims(toys, make_setting(tmp_path))]
    assert names == ["never", "cheap", "dear"]


def test_an_interrupted_run_goes_on_where_it_stopped(toys, tmp_path):
    setting, results = make_setting(tmp_path), tmp_path / "results"
    first = Runner(stop="one/b.json")
    with pytest.raises(Stop):
        reproduce(toys, setting, results, run=first)
    assert first.ran == ["one/a.json"]
    second = Runner()
    reproduce(toys, setting, results, run=second)
    assert second.ran == ["one/b.json", "two/b.json"]
    third, told = Runner(), []
    reproduce(toys, setting, results, run=third, tell=lambda claim, result: told.append(result))
    assert third.ran == [] and [one["verdict"] for one in told] == [NOT_RUN, *["confirmed"] * 2]


def test_results_are_small_files_by_model(toys, tmp_path):
    setting, results = make_setting(tmp_path), tmp_path / "results"
    reproduce(toys, setting, results, run=Runner())
    kept = json.loads((results / "mini/jetspec/table-1-cheap.json").read_text())
    assert kept["id"] == "jetspec/table-1/cheap" and kept["value"] == 2.0
    assert kept["setting"]["prompts"] == "prompts.jsonl" and kept["measured"] == ["one"]
    assert str(tmp_path) not in json.dumps(kept)
    never = json.loads((results / "mini/jetspec/table-1-never.json").read_text())
    assert never == {"id": "jetspec/table-1/never", "verdict": NOT_RUN, "ours": "it waits"}


def test_a_failure_is_the_reason_and_the_next_call_tries_again(toys, tmp_path):
    setting, results = make_setting(tmp_path), tmp_path / "results"
    runner = Runner(fail="one/b.json")
    reproduce(toys, setting, results, run=runner)
    kept = json.loads((results / "mini/jetspec/table-1-dear.json").read_text())
    assert kept["verdict"] == NOT_RUN
    assert kept["ours"] == "one failed: jaxspec: error: no such file"
    assert "two/b.json" not in runner.ran
    reproduce(toys, setting, results, run=runner)
    assert runner.ran.count("one/a.json") == 1


def test_a_rule_that_fails_is_the_reason_and_others_go_on(toys, tmp_path):
    def fail(reports):
        raise KeyError("report")

    broken = dataclasses.replace(toys[1], decide=fail)
    setting, results, told = make_setting(tmp_path), tmp_path / "results", []
    tell = lambda claim, result: told.append(result["ours"])  # noqa: E731
    reproduce([broken, toys[0]], setting, results, run=Runner(), tell=tell)
    assert told == ["its rule failed: KeyError: 'report'", "two: 2.0"]


def test_other_settings_need_another_folder(toys, tmp_path):
    setting = make_setting(tmp_path)
    reproduce(toys, setting, tmp_path / "results", run=Runner())
    other = dataclasses.replace(setting, seeds=5)
    with pytest.raises(ValueError, match="give another --out"):
        measure(Measurement(name="one", summary="", commands=lambda s: [], minutes={}), other)


def test_a_page_without_results_says_that_nothing_was_run(toys, tmp_path):
    page = make_page(read_results(tmp_path / "none"))
    assert "| mini | 0 | 0 | 0 | 0 | 3 |" in page
    assert "* its turn has not come: `jetspec/table-1/dear` (mini, smollm2-135m)" in page


def test_the_page_has_all_verdicts_reasons_and_explanations(toys, tmp_path):
    setting, results = make_setting(tmp_path), tmp_path / "results"
    reproduce(toys, setting, results, run=Runner())
    path = results / "mini/jetspec/table-1-dear.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"verdict": "refuted", "ours": "a / b 0.5 [0.4, 0.6]"}))
    page = make_page(read_results(results))
    assert "| mini | 1 | 1 | 0 | 0 | 1 |" in page
    assert "| `jetspec/table-1/cheap`: It is so. | 2 | **confirmed**: one: 2.0 | not run |" in page
    assert "**refuted**: a / b 0.5 [0.4, 0.6]" in page
    assert "* `jetspec/table-1/dear` (mini): No: it is a toy." in page
    assert "* it waits: `jetspec/table-1/never` (mini, smollm2-135m)" in page
    assert "| smollm2-135m | 0 | 0 | 0 | 0 | 3 |" in page
    assert "`jaxspec reproduce ID --model MODEL`" in page
    assert f"| `one` | a toy | mini, small, prompts.jsonl, {kept['date']} |" in page
    assert str(tmp_path) not in page and all(verdict in page for verdict in VERDICTS)
