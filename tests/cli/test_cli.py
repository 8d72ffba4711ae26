"""The command line, on the golden tiny target, which has no tokenizer."""

import dataclasses
import inspect
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.bench import benchmark
from jaxspec.bench.measure.scramble import scramble_drafter
from jaxspec.call import session
from jaxspec.call.options import RECORDS
from jaxspec.cli import main as cli
from jaxspec.cli.shared import values
from jaxspec.cli.shared.errors import USER_ERROR
from jaxspec.core.runtime import distribution as _distribution
from jaxspec.costs.round_costs import make_costs
from jaxspec.round.plan import DecodeConfig
from jaxspec.tuner.calibrate.by_rows import table_path, timed

GOLDEN = SHIPPED
MODEL = [
    str(GOLDEN / "dflash/target"),
    "--drafter",
    f"jetspec={GOLDEN / 'jetspec/drafter'}",
]
IDS = ["--token-ids", "--prompt", "117 142,122 64 240 19"]
SHORT = ["--max-new-tokens", "12", "--builder", "expand", "--budget", "7"]


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Options that name a shorter model, which compiles faster."""
    drafter = {"jetspec": GOLDEN / "jetspec/drafter"}
    folder = tmp_path_factory.mktemp("short") / "model"
    jaxspec.save(shorten(jaxspec.load(GOLDEN / "dflash/target", drafter=drafter)), folder)
    return [str(folder)]


def test_bench_measures_a_model_with_any_drafter_by_default():
    assert set(cli.parse(["bench"]).methods.split(",")) <= {"ar", "default", "all"}


def test_generate_streams_and_json_agree(capsys, short):
    status, streamed, _ = run(capsys, "generate", *short, *IDS, *SHORT)
    assert status == 0
    status, printed, _ = run(capsys, "generate", *short, *IDS, *SHORT, "--json")
    record = json.loads(printed)
    assert (
        status == 0
        and [int(token) for token in streamed.split()] == record["tokens"]
        and len(record["tokens"]) == 12
    )
    assert record["stats"]["emitted"] == 12 and record["stats"]["decode_seconds"] > 0
    assert record["stats"]["mean_acceptance_length"] >= 1
    status, plain, _ = run(capsys, "generate", *short, *IDS, *SHORT, "--drafter", "ar")
    assert plain == streamed


def test_bench(capsys, tmp_path, short):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"domain": "a", "prompt": [117, 142, 122, 64, 240, 19]}\n{"domain": "b", "prompt": [40, 41, 42, 43]}\n'
    )
    out = tmp_path / "out.json"
    arguments = [
        "--prompts",
        prompts,
        "--methods",
        "ar,jetspec-expand@7",
        "--against",
        "ar",
        "--max-new-tokens",
        20,
        "--repeats",
        2,
        "--json",
        out,
    ]
    others = [
        "--spec-bench",
        tmp_path / "answers.jsonl",
        "--vllm",
        tmp_path / "vllm.json",
        "--report",
        tmp_path / "report",
    ]
    status, printed, _ = run(capsys, "bench", *short, *arguments, *others)
    report = json.loads(out.read_text())
    assert status == 0 and {"device", "versions", "dtype", "settings", "results"} <= set(report)
    assert (
        report["settings"]["limit"] == 30
        and report["settings"]["methods"]["jetspec-expand@7"]["budget"] == 7
    )
    assert report["settings"]["against"] == "ar"
    assert set(report["compile_seconds"]) == {"ar", "jetspec-expand@7"}
    records = {(record["method"], record["domain"]): record for record in report["results"]}
    assert set(records) == {
        (method, domain) for method in ("ar", "jetspec-expand@7") for domain in ("a", "b", "all")
    }
    for record in records.values():
        assert (
            record["identical_to_ar"] is True
            and record["tokens_per_second"] > 0
            and record["speedup"] > 0
        )
        ratio = None if record["method"] == "ar" else record["mean_acceptance_length"]
        assert record.get("acceptance_ratio") == (ratio and pytest.approx(ratio))
        assert (
            sum(i * n for i, n in enumerate(record["accept_hist"]))
            == record["tokens"] - record["prompts"]
        )
        assert all(record[f"ms_{phase}"] > 0 for phase in ("draft", "tree", "verify", "rest"))
        drafted = record["method"] != "ar"
        assert (
            record["forwards"] == drafted
            and (record["ms_absorb"] > 0) == drafted
            and record["temperature"] == 0
        )
    assert (
        records["ar", "all"]["mean_acceptance_length"]
        == 1.0
        < records["jetspec-expand@7", "all"]["mean_acceptance_length"]
    )
    assert printed.count("jetspec-expand@7") == 4
    answers = [
        json.loads(line)
        for line in (tmp_path / "answers-jetspec-expand@7.jsonl").read_text().splitlines()
    ]
    assert [record["category"] for record in answers] == ["a", "b"] and all(
        record["identical_to_ar"] for record in answers
    )
    lengths = [length for record in answers for length in record["choices"][0]["accept_lengths"]]
    assert (
        sum(lengths) / len(lengths) == records["jetspec-expand@7", "all"]["mean_acceptance_length"]
    )
    counted = json.loads((tmp_path / "vllm.json").read_text())
    assert [
        record["vllm:spec_decode_num_drafts"]
        for record in counted
        if record["method"] == "jetspec-expand@7"
    ][-1] == len(lengths)
    assert "on each of the 2 prompts" in (tmp_path / "report/report.md").read_text()
    assert report["settings"]["chat"] is False and not {
        "report",
        "vllm",
        "spec_bench",
        "json",
    } & set(report["settings"])


@pytest.mark.thorough
def test_bench_scrambles_drafters(capsys, tmp_path, short, monkeypatch):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"domain": "a", "prompt": [117, 142, 122, 64, 240, 19]}\n')
    measured, given = benchmark.benchmark, []
    monkeypatch.setattr(
        benchmark,
        "benchmark",
        lambda params, *a, **b: given.append(params) or measured(params, *a, **b),
    )
    arguments = ["--prompts", prompts, "--methods", "ar,jetspec-expand@7", "--max-new-tokens", 9]
    arguments += ["--repeats", 1, "--no-profile", "--scramble", 3, "--json", out]
    status, printed, _ = run(capsys, "bench", *short, *arguments)
    assert status == 0 and "the drafters' weights are scrambled (seed 3)" in printed
    expected = scramble_drafter(jaxspec.load(short[0]), "jetspec", 3)
    for one, other in zip(
        *(jax.tree.leaves(p.drafters) for p in (given[0], expected)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    report = json.loads(out.read_text())
    assert report["settings"]["scramble"] == 3
    assert all(record["identical_to_ar"] is True for record in report["results"])


def test_demo(capsys):
    status, printed, _ = run(capsys, "demo", "mini", "--max-new-tokens", 24)
    assert status == 0 and printed.count("identical to autoregressive: yes") == 3
    for domain in ("prose", "code", "math"):
        assert f"=== {domain} " in printed
    lengths = [
        float(length)
        for length in re.findall(r"mean acceptance length ([0-9.]+) \(bonus included\)", printed)
    ]
    assert len(lengths) == 3 and min(lengths) >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "/no/such/model", "--prompt", "x"], "/no/such/model"),
        (["generate", *MODEL, "--prompt", "text"], "no tokenizer"),
        (["generate", *MODEL, "--token-ids", "--prompt", "1 two"], "'two' is not a token id"),
        (["generate", *MODEL, "--token-ids", "--prompt", ""], "empty prompt"),
        (["generate", MODEL[0], "--drafter", "/no/such", *IDS], "/no/such"),
        (["generate", *MODEL, "--drafter", "ar", *IDS], "give --drafter ar alone"),
        (["generate", *MODEL, "--drafter", "prompt_lookup", *IDS], "has no files to load"),
        (["generate", *MODEL, *IDS, "--budget", "0"], "budget is 0"),
        (["generate", *MODEL, *IDS, "--temperature", "-1"], "temperature"),
        (["generate", *MODEL, *IDS, "--builder", "oak/w3"], "unknown builder 'oak'"),
        (["generate", *MODEL, *IDS, "--builder", "static/paths=[[0"], "paths is not JSON"),
        (
            ["generate", *MODEL, *IDS, "--builder", "static/paths=/no/such/tree.json"],
            "/no/such/tree.json: No such file or directory",
        ),
        (
            ["generate", *MODEL, *IDS, "--builder", "static/paths=[[1,0]]"],
            "path [1, 0] has no parent",
        ),
        (["generate", *MODEL, "--drafter", "a/second", *IDS], "give one --drafter SOURCE"),
        (
            ["generate", "--prompt-file", "/no/such/file"],
            "/no/such/file: No such file or directory",
        ),
        # Files are looked for before models are loaded.
        (
            ["bench", "/no/such/model", "--prompts", "/no/such/file"],
            "/no/such/file: No such file or directory",
        ),
        (
            [
                "bench",
                "/no/such/model",
                "--prompts",
                __file__,
                "--against",
                "jetspec-bush",
            ],
            "nothing to compare with: 'jetspec-bush' is none of the methods ar, default",
        ),
        (["adapt", "--prompts", "/"], "/: Is a directory"),
        (
            ["bench", *MODEL, "--prompts", __file__, "--methods", "jetspec-bush"],
            "unknown method 'jetspec-bush'",
        ),
        (
            ["bench", *MODEL, "--prompts", __file__, "--json", "/no/such/folder/o.json"],
            "no directory /no/such/folder",
        ),
        (
            ["bench", *MODEL, "--prompts", __file__, "--spec-bench", "/no/such/folder/o.jsonl"],
            "--spec-bench: there is no directory",
        ),
        (["bench", *MODEL, "--prompts", __file__, "--coupled", "both"], "temperature"),
        (
            ["tree", "m", "x", "--out", "/no/such/folder/o.svg"],
            "--out: there is no directory /no/such/folder",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == USER_ERROR and out == ""
    assert err.startswith("jaxspec: error: ") and err.count("\n") == 1 and message in err, err


@pytest.mark.parametrize(
    ("given", "lookup"),
    [
        ([], None),
        (["--lookup", "on"], True),
        (["--lookup", "off"], False),
        (["--lookup", "suffix"], "suffix"),
    ],
)
def test_lookup_is_left_to_the_call_unless_it_is_named(given, lookup):
    arguments = cli.parse(["generate", "--prompt", "a", *given])
    assert values.collect_call(None, arguments)["speculation"].lookup is lookup


def test_every_decode_option_has_a_flag_and_a_line_in_the_documentation():
    parameters = inspect.signature(session.prepare).parameters.values()
    options = {one.name for one in parameters if one.kind == one.KEYWORD_ONLY} - set(RECORDS)
    records = (DecodeConfig, *RECORDS.values())
    options |= {field.name for record in records for field in dataclasses.fields(record)}
    options -= {"sampling", "evidence"}
    parser = cli.make_parser()._subparsers._group_actions[0].choices["generate"]
    flags = {action.dest for action in parser._actions}
    page = (Path(__file__).parents[2] / "docs/options.md").read_text()
    assert options <= flags
    assert not [name for name in options if not re.search(rf"\b{name}\b", page)]


def test_astronomy_package_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(_distribution.importlib.metadata, "version", lambda name: "0.3.4")
    status, _, err = run(capsys, "generate", "--prompt", "x")
    assert status == USER_ERROR and "X-ray astronomy" in err


def test_prompt_sources_and_options(capsys, monkeypatch, tmp_path):
    calls = []

    def stream(params, prompt, **options):
        calls.append((params, prompt, options))
        yield from ("a", "b")

    class Loaded(NamedTuple):
        model: str
        options: dict
        tokenizer: SimpleNamespace = SimpleNamespace(has_chat_template=True)

    monkeypatch.setattr(jaxspec, "load", lambda model, **options: Loaded(model, options))
    monkeypatch.setattr(jaxspec, "stream", stream)
    file = tmp_path / "prompt.txt"
    file.write_text("from a file\n\n")
    assert run(capsys, "generate", "--raw", "--prompt-file", file) == (0, "ab\n", "")
    file.write_bytes(b"caf\xe9\n")
    error = f"jaxspec: error: {file} is not UTF-8 (byte 3): save it as UTF-8\n"
    assert run(capsys, "generate", "--raw", "--prompt-file", file) == (2, "", error)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert run(capsys, "generate", "--raw")[2] == error.replace(str(file), "standard input")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    options = [
        "--stop",
        "x",
        "--stop-id",
        7,
        "--top-p",
        0.9,
        "--coupled",
        "off",
        "--dtype",
        "bfloat16",
    ]
    assert run(capsys, "generate", "m", "--drafter", "d", *options)[0] == 0
    assert calls[0][1] == "from a file\n"
    params, prompt, options = calls[1]
    given = {"drafter": "d", "dtype": "bfloat16", "quantize": None, "cache_dtype": None}
    assert params[:2] == ("m", given | {"mesh": None, "experts": "channel"})
    assert prompt == [{"role": "user", "content": "from stdin"}]
    assert options["stop"] == ("x", 7) and options["sampling"].top_p == 0.9
    assert options["max_new_tokens"] == 256 and options["budget"] is None
    assert options["speculation"] == jaxspec.Speculation(coupled=False)
    assert run(capsys, "generate", "--prompt", "x", "--builder", "static/paths=[[0]]")[0] == 0
    assert str(calls[-1][2]["speculation"].builder) == "static/paths=[[0]]"


def test_calibrate_names_all_that_its_table_is_kept_by(capsys, monkeypatch, tmp_path):
    """The options of a decode and of its calibration lead to the same file."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    table, made = make_costs((1, 2), (0,), (1.0,), [[1.0], [2.0]]), []
    monkeypatch.setattr(
        "jaxspec.tuner.calibrate.by_rows.measured",
        lambda params, method, **options: made.append(options) or table,
    )
    renewed = []
    monkeypatch.setattr(jaxspec.Tuner, "calibrate", lambda tuner, session: renewed.append(session))
    target, drafter = GOLDEN / "dflash/target", GOLDEN / "jetspec/drafter"
    sizes = ["--budget", 7, "--block-size", 5]
    status, out, err = run(capsys, "calibrate", target, drafter, "--builder", "expand/w3", *sizes)
    assert status == 0, err
    options = {
        "builder": "expand/w3",
        "budget": 7,
        "block_size": 5,
        "temperature": 0.0,
    }
    assert made == [{"repeats": 9, "contexts": None, "widths": None} | options]
    (session,) = renewed  # of the calls that leave their budget open
    assert session.config.drafter == "jetspec" and session.open.budget
    params = jaxspec.load(target, drafter=drafter)
    assert (
        out.splitlines()[-1]
        == f"kept in {table_path(params, 'jetspec', **timed(options | {'drafter': 'jetspec'}))}"
    )


def test_commands_that_decode_have_the_same_options_and_defaults():
    given = {"generate": ["m"], "chat": ["m"], "tree": ["m", "text"]}
    found = {
        name: vars(cli.parse([name, *words, "--drafter", "ar"])) for name, words in given.items()
    }
    shared = set.intersection(*map(set, found.values())) - {"run", "prompt"}
    assert {"model", "drafter", "budget", "builder", "policy", "max_new_tokens"} <= shared
    for name in shared:
        assert found["generate"][name] == found["chat"][name] == found["tree"][name], name
    adapt = vars(cli.parse(["adapt", "m", "--prompts", __file__, "--drafter", "ar"]))
    for name in shared & set(adapt):
        assert adapt[name] == found["generate"][name], name
