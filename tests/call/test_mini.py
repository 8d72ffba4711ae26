"""The model that ships: text in, text out, stop strings, streaming, and the same text from every
method.
"""

import dataclasses
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.call import start as engine_start
from jaxspec.io.hub import ZOO, shipped

PROMPT = "Question: Tom has 3 apples and buys 5 more. How many apples does he have?\nAnswer:"


SHIPPED = shipped(ZOO / "mini" / "drafters")


@pytest.fixture(scope="module")
def params():
    return jaxspec.load("mini")


@pytest.fixture(scope="module")
def plain(params):
    return jaxspec.decode(
        params, PROMPT, drafter="ar", max_new_tokens=48, sampling=jaxspec.Sampling(ignore_eos=True)
    )


def test_drafters_ship_and_jetspec_is_the_default(params):
    names = [name for name, _ in params.spec.drafters]
    assert names[:2] == ["jetspec", "dflash"] and set(names) == set(SHIPPED)
    assert sum(leaf.size for leaf in jax.tree.leaves(params.target)) <= 16e6
    files = [path for path in Path(ZOO / "mini" / "drafters").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 40e6


@pytest.mark.parametrize("name", SHIPPED)
def test_every_drafter_loads_by_its_name(name):
    one = jaxspec.load("mini", drafter=name)
    assert [label for label, _ in one.spec.drafters] == [name]
    # About as many parameters as the others, so that they can be compared.
    assert 1.9e6 < sum(leaf.size for leaf in jax.tree.leaves(one.drafters[name]["params"])) < 2.7e6


@pytest.mark.parametrize(
    "method",
    [
        "jetspec",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED if name != "jetspec"),
    ],
)
def test_drafts_are_accepted_and_the_text_is_the_plain_one(params, plain, method):
    out = jaxspec.decode(
        params,
        PROMPT,
        drafter=method,
        budget=16,
        max_new_tokens=48,
        sampling=jaxspec.Sampling(ignore_eos=True),
    )
    assert (out.tokens, out.text) == (plain.tokens, plain.text)
    assert out.stats.mean_acceptance_length > 1.5


def test_a_stop_string_is_cut_out_wherever_it_falls(params, plain):
    whole = plain.text
    for start in (5, 17, 40):
        stop = whole[start : start + 4]
        outs = [
            jaxspec.decode(
                params,
                PROMPT,
                drafter=method,
                budget=16,
                max_new_tokens=48,
                sampling=jaxspec.Sampling(ignore_eos=True),
                stop=stop,
            )
            for method in ("ar", "jetspec")
        ]
        assert outs[0].tokens == outs[1].tokens == plain.tokens[: len(outs[0].tokens)]
        assert outs[0].text == outs[1].text == whole[: whole.find(stop)]
        for out in outs:
            assert out.stats.finish_reason == "stop"
            assert sum(i * n for i, n in enumerate(out.stats.accept_hist)) == len(out.tokens) - 1


@pytest.mark.parametrize("stop", [(), ("a",)])
def test_a_stream_joins_to_the_text(params, stop):
    options = dict(budget=16, max_new_tokens=48, temperature=0.8, stop=stop)
    pieces = list(jaxspec.stream(params, PROMPT, **options))
    assert "".join(pieces) == jaxspec.decode(params, PROMPT, **options).text
    assert all(isinstance(piece, str) for piece in pieces)


def test_chat_messages(params):
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    options = dict(drafter="ar", max_new_tokens=16, capacity=256)
    out = jaxspec.decode(params, messages, **options)
    assert isinstance(out.text, str) and len(out.tokens) <= 16
    assert out.tokens == jaxspec.decode(params, [messages, PROMPT], **options)[0].tokens


def test_params_are_a_pytree_with_a_static_spec(params):
    leaves, structure = jax.tree.flatten(params)
    again = jax.tree.unflatten(structure, leaves)
    assert again.spec == params.spec
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)


def test_saving_over_what_was_loaded_keeps_it(params, tmp_path):
    jaxspec.save(params, tmp_path)
    again = jaxspec.load(tmp_path)
    jaxspec.save(again, tmp_path)
    assert jaxspec.load(tmp_path).spec == again.spec


def test_values_describe_themselves_in_a_line(params, plain):
    """An interpreter shows them after every cell; all weights would be 320,000 characters."""
    shown = repr(params)
    assert shown.startswith("Params(qwen3, 6 layers, 8.32 M parameters (float32); drafters: jets")
    assert "dflash (2.64 M)" in shown and len(shown) < 300
    assert repr(jaxspec.load("mini", drafter={})).endswith("drafters: none)")
    assert len(repr(jax.tree.map(lambda leaf: None, params))) < 300  # as transformations make them
    text = repr(plain)
    assert text.startswith(f"Output({plain.text[:20]!r}"[:-1]) and len(text) < 200
    assert "48 tokens in 47 rounds, length" in text and "tokens/s" in text
    ids = dataclasses.replace(plain, text=None, tokens=list(range(9)))
    assert repr(ids).startswith("Output([0, 1, 2, 3, 4, 5, 6, 7, ...], 9 tokens")


def test_compiling_is_told_apart(params, monkeypatch):
    monkeypatch.setattr(engine_start.prefill, "_begun", {})
    monkeypatch.setattr(engine_start.run, "_begun", {})
    compile_one, slept = engine_start._compile, []

    def compile_slowly(lowered):
        time.sleep(0.5)
        slept.append(lowered)
        compile_one(lowered)

    monkeypatch.setattr(engine_start, "_compile", compile_slowly)
    options = {"drafter": "jetspec", "budget": 4, "max_new_tokens": 8}
    first, second = (jaxspec.decode(params, PROMPT, **options).stats for _ in range(2))
    assert len(slept) == 2 and first.compile_seconds >= 0.5 > second.compile_seconds >= 0
    assert first.to_dict()["compile_seconds"] == first.compile_seconds
    *_, streamed = iterate(jaxspec.stream(params, PROMPT, **options))
    assert 0 <= streamed.stats.compile_seconds < 0.5 and streamed.stats.prefill_seconds > 0


def iterate(stream):
    """Yield what a stream yields, and then what it returns."""
    yield (yield from stream)


def test_nan_weights_are_refused(params, tmp_path):
    spoiled = jax.tree.map(np.asarray, params)
    spoiled.target["params"]["norm"]["scale"] = np.full_like(
        spoiled.target["params"]["norm"]["scale"], np.nan
    )
    jaxspec.save(spoiled, tmp_path)
    with pytest.raises(ValueError, match="NaN"):
        jaxspec.load(tmp_path)
