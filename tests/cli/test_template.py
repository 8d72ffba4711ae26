"""Variables of the chat template: in `decode`, and as --template of the commands."""

import json

import pytest

import jaxspec
from jaxspec.adapt import session
from jaxspec.bench.peers import peer_tables, race_peers
from jaxspec.cli import main as cli
from jaxspec.io.hub import ZOO

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %} No thoughts.{% endif %}"
    "{% if effort is defined %} Effort {{ effort }}.{% endif %}"
)
HI = [{"role": "user", "content": "Hi"}]
OFF = ["--template", "enable_thinking=false"]
SHORT = ["--drafter", "ar", "--max-new-tokens", "4"]
LINE = "chat template: enable_thinking=false\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """`mini` with a template that has variables."""
    folder = tmp_path_factory.mktemp("template") / "model"
    jaxspec.save(jaxspec.load("mini"), folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    for other in folder.glob("chat_template.*"):
        other.unlink()
    return str(folder)


def run(capsys, *arguments):
    status = cli.main([str(one) for one in arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_decode_renders_with_the_variables(model):
    params, given = jaxspec.load(model), {"max_new_tokens": 4, "drafter": "ar"}
    for template, text in (
        ({"enable_thinking": False}, "Hi No thoughts."),
        ({"enable_thinking": True, "effort": 2}, "Hi Effort 2."),
        ({}, "Hi"),
        (None, "Hi"),
    ):
        ids = params.tokenizer.encode(text, special=False)
        wanted = jaxspec.decode(params, ids, **given).tokens
        assert jaxspec.decode(params, HI, template=template, **given).tokens == wanted
        stream = jaxspec.stream(params, HI, template=template, **given)
        assert "".join(stream) == params.tokenizer.decode(wanted)
    both = jaxspec.decode(params, ["Hi", HI], template={"effort": 2}, **given)
    assert len(both) == 2


@pytest.mark.parametrize(
    "prompt, template, kind, message",
    [
        (HI, {"enable_thinkin": 1}, ValueError, "no variable 'enable_thinkin': did you mean 'enab"),
        (HI, {"tools": []}, ValueError, "choose one of effort, enable_thinking"),
        (HI, "enable_thinking=false", TypeError, "give names and values"),
        ("Hi", {"effort": 1}, ValueError, "no prompt is put into the chat template"),
        ([1, 2], {"effort": 1}, ValueError, "no prompt is put into the chat template"),
    ],
)
def test_decode_refuses_what_would_change_nothing(model, prompt, template, kind, message):
    params = jaxspec.load(model)
    for call in (jaxspec.decode, jaxspec.stream):
        with pytest.raises(kind, match=message):
            call(params, prompt, template=template)


def test_a_template_without_variables_says_so():
    with pytest.raises(ValueError, match="has no variable 'effort': it has none; leave it out"):
        jaxspec.decode(jaxspec.load("mini"), HI, template={"effort": 1})


def test_values_are_json_or_texts():
    given = ["a=false", "b=False", "c=2", "d=low", 'e={"x": [1]}', "f=", "g=x=y"]
    arguments = [one for item in given for one in ("--template", item)]
    read = cli.parse(["generate", "--prompt", "x", *arguments]).template
    values = {"a": False, "b": False, "c": 2, "d": "low", "e": {"x": [1]}, "f": "", "g": "x=y"}
    assert read == values
    assert cli.parse(["generate", "--prompt", "x"]).template is None


@pytest.mark.parametrize("given", ["enable_thinking", "=1", "a b=1"])
def test_a_variable_needs_a_name_and_a_value(capsys, given):
    with pytest.raises(SystemExit):
        cli.parse(["generate", "--prompt", "x", "--template", given])
    assert "is no NAME=VALUE" in capsys.readouterr().err


def test_generate_reports_what_it_applied(capsys, model):
    params, ask = jaxspec.load(model), ("generate", model, "--prompt", "Hi", *SHORT, "--json")
    given = {"max_new_tokens": 4, "drafter": "ar"}
    for more, template in ((OFF, {"enable_thinking": False}), ([], None)):
        status, shown, _ = run(capsys, *ask, *more)
        record = json.loads(shown)
        assert status == 0 and record.get("template") == template
        assert record["tokens"] == jaxspec.decode(params, HI, template=template, **given).tokens
    status, _, error = run(capsys, *ask, "--template", "thinking=false")
    assert status == 2 and "did you mean 'enable_thinking'" in error
    status, _, error = run(capsys, *ask, *OFF, "--raw")
    assert status == 2 and "neither --raw nor --token-ids" in error
    status, text, told = run(capsys, *ask[:-1], *OFF)
    assert status == 0 and told == LINE and LINE not in text


@pytest.mark.thorough
def test_chat_and_tree_apply_it(capsys, model, monkeypatch):
    lines = iter(["Hi", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    status, shown, _ = run(capsys, "chat", model, *SHORT, *OFF)
    assert status == 0
    given = {"max_new_tokens": 4, "drafter": "ar", "template": {"enable_thinking": False}}
    assert jaxspec.decode(jaxspec.load(model), HI, **given).text in shown
    assert shown.startswith(LINE)
    assert run(capsys, "chat", model, *SHORT, "--template", "x=1")[0] == 2
    drafted = ["--drafter", "prompt_lookup", "--max-new-tokens", "4"]
    status, shown, error = run(capsys, "tree", model, "Hi Hi Hi", *drafted, *OFF)
    assert status == 0 and shown.startswith(LINE), error
    status, shown, error = run(capsys, "tree", model, "Hi Hi Hi", *drafted)
    assert status == 0 and "chat template" not in shown, error


def test_bench_applies_it_to_every_decode_and_records_it(capsys, model, tmp_path, monkeypatch):
    decode, given = jaxspec.decode, []

    def spy(*arguments, **options):
        given.append(options.get("template"))
        return decode(*arguments, **options)

    monkeypatch.setattr(jaxspec, "decode", spy)
    prompts, out = tmp_path / "set.jsonl", tmp_path / "out.json"
    prompts.write_text('{"question": "Hi"}\n{"prompt": "Ho"}\n')
    more = ["--methods", "ar", "--max-new-tokens", 4, "--repeats", 1, "--no-profile"]
    ask = ("bench", model, "--prompts", prompts, "--json", out, *more, *OFF)
    status, _, error = run(capsys, *ask)
    assert status == 2 and "prompts of set are in no chat template: give --chat on" in error
    status, shown, error = run(capsys, *ask, "--chat", "on")
    assert status == 0, error
    settings = json.loads(out.read_text())["settings"]
    assert settings["template"] == {"enable_thinking": False} and settings["chat"] is True
    assert len(given) >= 2 and all(one == {"enable_thinking": False} for one in given)


@pytest.fixture
def told(monkeypatch):
    """The variables that each call is prepared with."""
    given, own = [], session.prepare

    def prepare(*arguments, **options):
        given.append(options.get("template"))
        return own(*arguments, **options)

    monkeypatch.setattr(session, "prepare", prepare)
    return given


@pytest.mark.thorough
def test_adapt_applies_it_to_every_query(capsys, model, tmp_path, told):
    prompts = tmp_path / "set.jsonl"
    prompts.write_text('{"question": "Hi"}\n{"question": "Ho"}\n')
    drafter = f"jetspec={ZOO / 'mini' / 'drafters' / 'jetspec'}"
    ask = ["adapt", model, "--drafter", drafter, "--prompts", prompts, "--decider", "never"]
    status, shown, error = run(capsys, *ask, "--max-new-tokens", 4, "--budget", 4, *OFF)
    assert status == 0 and shown.startswith(LINE), error
    assert told == [{"enable_thinking": False}] * 2
    status, _, error = run(capsys, *ask, "--chat", "off", *OFF)
    assert status == 2 and "prompts of set are in no chat template: give --chat on" in error


def test_peers_get_the_rendered_prompts(capsys, model, monkeypatch, tmp_path):
    seen = []

    def compare(params, prompts, *rest, **options):
        seen.extend(one.content for one in prompts)
        return {"results": [], "overhead": {}, "note": None}

    monkeypatch.setattr(race_peers, "compare_peers", compare)
    monkeypatch.setattr(peer_tables, "render_peers", lambda *_: "")
    prompts = tmp_path / "set.jsonl"
    prompts.write_text('{"question": "Hi"}\n')
    ask = ["bench", "peers", model, "--methods", "ar", "--prompts", prompts]
    assert run(capsys, *ask, *OFF)[0] == 0
    assert seen == [jaxspec.load(model).tokenizer.encode("Hi No thoughts.", special=False)]
    status, _, error = run(capsys, *ask, "--template", "x=1")
    assert status == 2 and "no variable 'x'" in error


def test_demo_takes_it_where_it_asks_in_a_template(capsys):
    status, _, error = run(capsys, "demo", "mini", *OFF)
    assert status == 2 and "mini continues texts, in no chat template" in error
