"""Names that are not known: the message tells which one was probably meant."""

import pytest

import jaxspec
from jaxspec.builders.parse import parse_builder
from jaxspec.call.options import group_options
from jaxspec.cli.main import main
from jaxspec.core.runtime.near_miss import choose_one, find_near_miss, naming_options
from jaxspec.policies.named import make_named
from jaxspec.serve import make_engine
from jaxspec.zoo.places import resolve_model


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter="dflash")


@pytest.mark.parametrize(
    "given, known, expected",
    [
        ("smolm2-135m", ("mini", "smollm2-135m"), "smollm2-135m"),
        ("Mini", ("mini", "smollm2-135m"), "mini"),
        ("best-frist", ("best_first", "chain"), "best_first"),
        ("qwen3", ("mini", "smollm2-135m"), None),
        ("x", (), None),
    ],
)
def test_the_nearest_name_is_found(given, known, expected):
    assert find_near_miss(given, known) == expected


def test_all_names_are_listed():
    assert choose_one("chian", ("chain", "beam")) == (
        "did you mean 'chain'? If not, choose one of chain, beam"
    )
    assert choose_one("other", ("chain", "beam")) == "choose one of chain, beam"
    assert choose_one(3, ("chain", "beam")) == "choose one of chain, beam"


def test_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-8B").mkdir()
    (tmp_path / "model-q4.gguf").touch()
    for given, meant in {
        "smolm2-135m": "smollm2-135m",
        "mimi": "mini",
        "Qwen3-8b-": "Qwen3-8B",
        f"{tmp_path}/Qwen3-8": f"{tmp_path}/Qwen3-8B",
        "modl-q4.gguf": "model-q4.gguf",
    }.items():
        with pytest.raises(FileNotFoundError, match=f"did you mean '{meant}'"):
            resolve_model(given)
    with pytest.raises(FileNotFoundError, match="no file nofile.gguf: check its path"):
        resolve_model("nofile.gguf")
    with pytest.raises(FileNotFoundError, match="no folder 'drafter': did you mean 'drafters'"):
        (tmp_path / "Qwen3-8B" / "drafters").mkdir()
        resolve_model("Qwen3-8B::drafter")


def test_a_model_that_is_not_loaded():
    for call in (
        lambda: jaxspec.decode("mini", "hi"),
        lambda: next(jaxspec.stream("mini", "hi")),
        lambda: jaxspec.warmup("mini", prompt_tokens=8),
        lambda: jaxspec.save("mini", "somewhere"),
        lambda: jaxspec.adapt.AdaptiveSession("mini"),
        lambda: make_engine("mini"),
    ):
        with pytest.raises(TypeError, match=r"params = jaxspec.load\('mini'\)"):
            call()
    with pytest.raises(TypeError, match="params is of type dict: give what jaxspec.load returns"):
        jaxspec.decode({}, "hi")


def test_names_in_calls(mini):
    for options, message in (
        ({"drafter": "dfalsh"}, "did you mean 'dflash'"),
        ({"builder": "best-frist"}, "did you mean 'best_first'"),
        ({"builder": "chain/depht=3"}, "has no setting"),
        ({"acceptance": "rejecton"}, "did you mean 'rejection'"),
    ):
        with pytest.raises(ValueError, match=message):
            jaxspec.decode(mini, [1, 2], **group_options(**options))
    with pytest.raises(TypeError, match="'temprature': did you mean 'temperature'"):
        jaxspec.decode(mini, [1, 2], temprature=1)
    with pytest.raises(TypeError, match="'max_tokens': did you mean 'max_new_tokens'"):
        jaxspec.warmup(mini, prompt_tokens=2, max_tokens=3)
    with pytest.raises(ValueError, match="did you mean 'ddd-paper'"):
        make_named("ddd-papr", lambda: None)
    with pytest.raises(ValueError, match="did you mean 'logprob'"):
        jaxspec.builders.best_first(score="logprop")
    with pytest.raises(ValueError, match="unknown builder 'beem'"):
        parse_builder("beem")


def test_options_reach_the_function():
    @naming_options
    def add(one, *, other=2):
        """Add."""
        return one + other

    assert (add(1), add(1, other=3), add.__doc__) == (3, 4, "Add.")
    with pytest.raises(TypeError, match="no option is called 'othr': did you mean 'other'"):
        add(1, othr=3)


@pytest.mark.parametrize(
    "line, message",
    [
        ("generate --promt hi", "unrecognized arguments: --promt: did you mean --prompt?"),
        ("generate --prompt hi --budgt=3", "did you mean --budget?"),
        ("generate --prompt hi --method ar", "arguments: --method: did you mean --drafter?"),
        ("doctor --method ar", "unrecognized arguments: --method\n"),
        ("genrate --prompt hi", "did you mean 'generate'? If not, choose one of generate, chat"),
        ("generate --prompt hi --dtype flaot32", "did you mean 'float32'?"),
        ("generate --prompt hi --zzz", "unrecognized arguments: --zzz\n"),
    ],
)
def test_the_command_line(capsys, line, message):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_models_and_drafters_of_the_command_line(capsys):
    assert main(["bench", "serv"]) == 2
    assert "did you mean `jaxspec bench serve`?" in capsys.readouterr().err
    assert main(["generate", "smolm2-135m", "--prompt", "hi"]) == 2
    assert "did you mean 'smollm2-135m'?" in capsys.readouterr().err
    assert main(["generate", "--drafter", "jetspce", "--prompt", "hi"]) == 2
    assert "did you mean 'jetspec'?" in capsys.readouterr().err
    assert main(["doctor", "mini"]) == 2
    assert "give one of dflash, draft_model" in capsys.readouterr().err
