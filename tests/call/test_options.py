"""The records of options: where an option belongs, and what is refused when a record is made."""

import dataclasses

import numpy as np
import pytest

import jaxspec
from jaxspec import Sampling, Speculation
from jaxspec.call.options import fill_records, group_options
from jaxspec.call.session import prepare

PROMPT = [117, 142, 122, 64]


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter={"dflash": "dflash", "medusa": "medusa"})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (jaxspec.decode, "'top_k' is an option of Sampling: give sampling=jaxspec.Sampling"),
        (jaxspec.stream, "'top_k' is an option of Sampling: give sampling=jaxspec.Sampling"),
        (jaxspec.warmup, "'top_k' is an option of Sampling: give sampling=jaxspec.Sampling"),
        (prepare, r"'top_k' is an option of Sampling: give sampling=jaxspec.Sampling\(top_k=5\)"),
    ],
)
def test_an_option_of_a_record_is_told_its_place(mini, call, match):
    prompt = {"prompt_tokens": 4} if call is jaxspec.warmup else {"prompt": PROMPT}
    with pytest.raises(TypeError, match=match) as caught:
        call(mini, **prompt, top_k=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options", "match"),
    [
        (Sampling, {"topk": 5}, "'topk': did you mean 'top_k'"),
        (
            Sampling,
            {"builder": "chain"},
            r"give speculation=jaxspec.Speculation\(builder='chain'\)",
        ),
        (Speculation, {"polcy": 1}, "'polcy': did you mean 'policy'"),
        (Speculation, {"min_tokens": 1}, r"give sampling=jaxspec.Sampling\(min_tokens=1\)"),
        (Speculation, {"mintokens": 1}, "'mintokens': 'min_tokens' is an option of Sampling"),
        (Sampling, {"zzz": 1}, "no option is called 'zzz': choose one of temperature, top_k"),
    ],
)
def test_names_that_a_record_does_not_know(make, options, match):
    with pytest.raises(TypeError, match=match):
        make(**options)


def test_a_typo_of_another_option_is_told_its_place(mini):
    with pytest.raises(TypeError, match="'block_sze': 'block_size' is an option of Speculation"):
        jaxspec.decode(mini, PROMPT, block_sze=4)
    with pytest.raises(TypeError, match=r"Speculation\(policy=...\)$"):
        jaxspec.decode(mini, PROMPT, policy="x" * 80)


def test_an_option_is_given_once(mini):
    for flat in ({"temperature": 0.7}, {"temperature": 0.0}):
        with pytest.raises(
            ValueError, match=r"temperature is 0\.., and 0.0 in sampling: give it in"
        ):
            jaxspec.decode(mini, PROMPT, **flat, sampling=Sampling(temperature=0.0))
    with pytest.raises(ValueError, match="budget is 4, and 8 in speculation: give it in one place"):
        jaxspec.stream(mini, PROMPT, budget=4, speculation=Speculation(budget=8))
    with pytest.raises(
        TypeError, match=r"sampling is of type dict: give sampling=jaxspec.Sampling"
    ):
        jaxspec.decode(mini, PROMPT, sampling={"top_k": 5})
    with pytest.raises(TypeError, match="speculation is of type str: give speculation="):
        jaxspec.decode(mini, PROMPT, speculation="auto")


def test_flat_and_in_a_record_is_the_same_call(mini):
    sampling, speculation = Sampling(temperature=0.7, top_k=4), Speculation(budget=6)
    one = prepare(mini, PROMPT, sampling=sampling, speculation=speculation)
    other = prepare(mini, PROMPT, temperature=0.7, budget=6, sampling=Sampling(top_k=4))
    assert one.config == other.config and one.config.budget == 6
    assert one.request.sampling.temperature == other.request.sampling.temperature == np.float32(0.7)
    assert prepare(mini, PROMPT, budget=6).config.sampling.greedy


def test_records_are_checked_when_they_are_made():
    for make, options, match in (
        (Sampling, {"top_p": 2}, "top_p must be in"),
        (Sampling, {"min_tokens": -1}, "min_tokens is -1"),
        (Sampling, {"ignore_eos": 1}, "ignore_eos is 1: give True or False"),
        (Speculation, {"builder": "beem"}, "unknown builder 'beem'"),
        (Speculation, {"budget": 0}, "budget is 0: give an integer from 1 to 4096"),
        (Speculation, {"policy": "never"}, "policy is 'never': give 'auto'"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            make(**options)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().top_k = 3
    assert Speculation(builder="chain") == Speculation(builder=jaxspec.builders.chain())
    assert type(Speculation(budget=np.int32(4)).budget) is int


def test_options_are_grouped_by_name():
    assert group_options(seed=1, temperature=0.5, budget=4) == dict(
        seed=1, temperature=0.5, budget=4
    )
    assert group_options(top_k=5, depth=3, drafter="ar") == dict(
        drafter="ar", sampling=Sampling(top_k=5), speculation=Speculation(depth=3)
    )
    with pytest.raises(TypeError, match="sampling is given, and top_k: put them into it"):
        group_options(top_k=5, sampling=Sampling())
    assert fill_records(None, None, None, None) == (Sampling(), Speculation())


def test_params_name_their_drafters_and_have_a_tokenizer(mini):
    assert list(mini.drafters) == [name for name, _ in mini.spec.drafters]
    reverse = dataclasses.replace(mini.spec, drafters=mini.spec.drafters[::-1])
    assert list(mini.replace(spec=reverse).drafters) == list(mini.drafters)[::-1]
    assert mini.tokenizer is mini.tokenizer
    assert mini.tokenizer.decode(mini.tokenizer.encode("Question:")) == "Question:"
    assert mini.replace(spec=dataclasses.replace(mini.spec, tokenizer=None)).tokenizer is None
    assert not jaxspec.load("mini", drafter="ar").drafters
