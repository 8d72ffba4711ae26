"""The race against transformers: figures, fairness of the turns, texts compared, and what a round
takes beyond its forwards.
"""

import json
from collections import defaultdict

import pytest

import jaxspec
from jaxspec.bench.demo import DEMO_PROMPTS, DEMO_QUESTIONS
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.bench.peers import race_peers as peers
from jaxspec.bench.peers.overhead import _medians, measure_overhead
from jaxspec.bench.peers.peer import Peer, PeerDecode
from jaxspec.bench.peers.peer_tables import render_peers
from jaxspec.bench.peers.pytorch import PLAIN
from jaxspec.bench.peers.race_peers import default_methods, race_peers, summarise_peer
from jaxspec.call.text.token_ids import to_ids
from jaxspec.cli.main import main
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.zoo.drafters import drafter_directories
from jaxspec.zoo.places import resolve_model


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter="draft_model", dtype="float32")


def decodes(*runs):
    """{0: decodes of one prompt} of (tokens, seconds) pairs."""
    return {
        0: [
            PeerDecode(tuple(range(count)), seconds, seconds / 2, count - 1)
            for count, seconds in runs
        ]
    }


def test_figures_of_a_peer():
    found = {
        "ar": decodes((9, 2.0), (9, 4.0), (9, 2.5)),
        PLAIN: decodes((9, 4.0), (9, 4.0), (9, 10.0)),
    }
    ours, plain = summarise_peer("ar", found), summarise_peer(PLAIN, found)
    assert (
        ours["tokens_per_second"] == 8 / 1.25 and ours["tokens_per_second_with_prefill"] == 9 / 2.5
    )
    assert ours["spread"] == 2 / 2.5
    assert ours["against_plain"] == 2.0 and ours["against_plain_iqr"] == [
        1.5,
        3.0,
    ]  # of 2, 1 and 4, repeat by repeat
    assert plain["against_plain"] == 1.0 and plain["speedup"] == 0.5
    assert plain["identical_to_ar"]


def test_a_differing_text_is_told():
    found = {"ar": decodes((4, 1.0)), "other": decodes((5, 1.0))}
    assert summarise_peer("other", found) | {
        "differing_prompts": 1,
        "identical_to_ar": False,
    } == summarise_peer("other", found)
    assert "NO (1)" in render_peers([summarise_peer("other", found)], {})
    assert summarise_peer("other", found)["against_plain"] is None  # no PyTorch, no plain generate


def test_peers_take_turns(mini):
    order, prompts = [], [LabelledPrompt("a", [3, 4]), LabelledPrompt("b", [5])]

    def peer(name):
        def decode(ids):
            order.append((name, tuple(ids)))
            return PeerDecode((1, 2), 1.0, 1.0, 1)

        return Peer(name, decode)

    results = race_peers(mini, prompts, [peer("ar"), peer("x"), peer("y")], repeats=6)
    assert [one["decodes"] for one in results] == [12, 12, 12]
    counted = order[3:21]  # behind the first prompt's warm-up
    firsts = defaultdict(set)
    for place, (name, ids) in enumerate(counted):
        assert ids == (3, 4)
        firsts[name].add(place % 3)
    assert all(places == {0, 1, 2} for places in firsts.values())


def test_default_methods_are_of_what_is_loaded(mini):
    assert default_methods(mini.spec) == "draft_model-chain@6,prompt_lookup-chain@8"
    parse_methods(default_methods(mini.spec), budget=8, spec=mini.spec)


def test_overhead_is_over_the_forwards_of_the_same_round():
    rounds = [
        {"round": 4.0, "target_forward": 1.0, "draft_forward": 0.5, "absorb": 0.5},
        {"round": 3.0, "target_forward": 1.5, "draft_forward": 1.0, "absorb": 0.5},
        {"round": 30.0, "target_forward": 10.0, "draft_forward": 8.0, "absorb": 2.0},
    ]
    found = _medians(rounds)
    assert (
        found["overhead"] == 0.5 and found["round"] == 4000.0 and found["target_forward"] == 1500.0
    )


@pytest.mark.slow
def test_pieces_of_a_round_are_timed(mini):
    methods = parse_methods("draft_model-chain@3", budget=3, spec=mini.spec)
    found = measure_overhead(
        mini, [LabelledPrompt("a", [3, 4, 5])], methods, options={"max_new_tokens": 8}, rounds=2
    )
    assert set(found) == {"ar", "draft_model-chain@3"}
    assert found["ar"]["draft_forward"] == found["ar"]["absorb"] == 0
    assert (
        found["draft_model-chain@3"]["draft_forward"] == found["draft_model-chain@3"]["draft"] > 0
    )
    assert all(
        one["round"] > 0 and one["target_forward"] > 0 and one["overhead"] > -1
        for one in found.values()
    )


@pytest.mark.slow
def test_without_torch_ours_are_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(peers, "torch_installed", lambda: False)
    monkeypatch.setattr(peers, "measure_overhead", lambda *arguments, **options: {})
    options = [
        "--drafter",
        "prompt_lookup",
        "--methods",
        "ar",
        "--limit",
        "1",
        "--max-new-tokens",
        "2",
        "--repeats",
        "1",
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The river"}\n')
    out = tmp_path / "out.json"
    assert main(["bench", "peers", *options, "--prompts", str(prompts), "--json", str(out)]) == 0
    assert "pip install torch" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert [one["name"] for one in report["results"]] == ["ar"] and report["settings"][
        "model"
    ] == "mini"


def test_what_is_missing_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "torch_installed", lambda: False)
    monkeypatch.setattr(peers, "llama_cpp_installed", lambda: False)
    assert peers.find_others(tmp_path, {}, (), 64, 8)[2] == [peers.HOW_TO_INSTALL]
    monkeypatch.setattr(peers, "is_gguf", lambda model: True)
    others, versions, notes = peers.find_others(tmp_path, {}, (), 64, 8)
    assert not others and not versions
    assert ["pip install torch" in notes[0], "pip install llama-cpp-python" in notes[1]] == [
        True
    ] * 2


@pytest.mark.torch
def test_llama_cpp_says_nearly_the_same():
    pytest.importorskip("llama_cpp")
    model = resolve_model("smollm2-135m")
    params = jaxspec.load("smollm2-135m", drafter="prompt_lookup", dtype="float32")
    tokenizer = load_tokenizer(params.spec.tokenizer)
    prompts = read_prompts(DEMO_QUESTIONS, tokenizer, chat=True)[:1]
    ids = to_ids(prompts[0].content, tokenizer, params.spec.target)
    others, versions, _ = peers.find_others(model, {}, params.spec.eos, 256, 24)
    out = others[-1].decode(ids)
    assert others[-1].name == "llama.cpp (Q4_1)" and "llama-cpp-python" in versions
    ours = jaxspec.decode(params, ids, drafter="ar", max_new_tokens=24).tokens
    assert out.tokens[:4] == tuple(ours[:4])  # it rounds activations, so later ones may differ
    assert 0 < out.decode_seconds < out.seconds and out.decode_tokens == len(out.tokens) - 1
    assert others[-1].decode(ids).tokens == out.tokens


@pytest.mark.torch
def test_transformers_generates_the_same_tokens(mini):
    prompts = read_prompts(DEMO_PROMPTS, load_tokenizer(mini.spec.tokenizer))[:1]
    assistants = peers.find_assistants(
        mini.spec, drafter_directories("mini", drafter="draft_model")
    )
    assert list(assistants) == ["draft_model"]
    methods = parse_methods("draft_model-chain@4", budget=4, spec=mini.spec)
    model = resolve_model("mini")
    report = peers.compare_peers(
        mini, prompts, methods, model, assistants, max_new_tokens=24, repeats=1
    )
    names = [one["name"] for one in report["results"]]
    assert names == [
        "ar",
        "draft_model-chain@4",
        PLAIN,
        "transformers assisted (small)",
        "transformers prompt lookup",
    ]
    assert all(one["identical_to_ar"] for one in report["results"])
    assert report["note"] is None and "torch" in report["versions"]
    assert PLAIN in render_peers(report["results"], report["overhead"])
