"""Bad arguments are refused in one line that says what to do."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.call import arguments
from jaxspec.call.options import group_options
from jaxspec.call.text.token_ids import is_batch, to_ids
from jaxspec.core.config import TargetConfig
from jaxspec.core.sampling.noise import sequence_keys
from jaxspec.drafters.sizes import choose_depth

MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "prompt",
    [
        "text",
        "",
        [1, 2],
        (1, 2),
        np.array([1, 2]),
        np.array([[1, 2], [3, 4]]),
        [np.int64(3)],
        [MESSAGE],
        ["a", "b"],
        [[1], [2, 3]],
        [np.array([1]), "text", [MESSAGE]],
    ],
)
def test_prompts(prompt):
    arguments.check_prompt(prompt)


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        (None, "the prompt is None: give text, token ids"),
        (3, "the prompt is of type int: give text"),
        (True, "the prompt is of type bool"),
        (np.int32(3), "the prompt is of type int32"),
        ([1.5, 2], "the prompt holds 1.5: give text"),
        ([1, 2.0], "the prompt holds 2.0"),
        ([1, True], "the prompt holds True"),
        ([1, None], "the prompt holds None"),
        ([None], "the prompt holds None"),
        ([1, "a"], "the prompt holds 'a'"),
        (np.array([0.5]), r"the prompt is a float64 array of shape \(1,\)"),
        (np.zeros((1, 1, 1), int), r"the prompt is a int64 array of shape \(1, 1, 1\)"),
        (MESSAGE, r"single chat message: put it into a list, \[message\]"),
        ([MESSAGE, "x"], "the prompt holds 'x'"),
        (b"text", r"the prompt is bytes: decode it to text first"),
        ([b"text"], r"prompt 0 of the list is bytes"),
        ({1, 2}, "the prompt is of type set"),
        (iter([1]), "the prompt is of type list_iterator"),
        ([[1], [0.5]], "prompt 1 of the list holds 0.5"),
        (["a", 3], "prompt 1 of the list is of type int"),
        ([["a"]], "prompt 0 of the list holds 'a'"),
    ],
)
def test_bad_prompts(prompt, match):
    with pytest.raises(TypeError, match=match) as caught:
        arguments.check_prompt(prompt)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [[], (), [[]], ["a", []]])
def test_empty_prompts(prompt):
    with pytest.raises(ValueError, match="empty prompt: .* holds nothing; give text"):
        arguments.check_prompt(prompt)


def test_counts():
    assert arguments.check_count("n", np.int32(3)) == 3
    assert type(arguments.check_count("n", np.int32(3))) is int
    for value in (1.5, True, "3", None, [1], 2.0):
        with pytest.raises(TypeError, match="n is .*: give an integer at least 1"):
            arguments.check_count("n", value)
    for value in (0, -1):
        with pytest.raises(ValueError, match="n is .*: give an integer from 1 to 8"):
            arguments.check_count("n", value, 1, 8)


def test_numbers():
    assert arguments.check_positive("x", 2) == 2.0
    for value in ("2", None, True, [1]):
        with pytest.raises(TypeError, match="x is .*: give a number above 0"):
            arguments.check_positive("x", value)
    for value in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="x is .*: give a number above 0"):
            arguments.check_positive("x", value)


def test_budgets():
    assert arguments.check_budget(arguments.MAX_BUDGET) == arguments.MAX_BUDGET
    with pytest.raises(ValueError, match="budget is 1000000: give an integer from 1 to 4096"):
        arguments.check_budget(1_000_000)


def test_seeds():
    assert arguments.check_seed(-5) == -5
    for seed in (1.5, "1", None, True):
        with pytest.raises(TypeError, match="seed is .*: give an integer"):
            arguments.check_seed(seed)
    with pytest.raises(ValueError, match="seed is .*: give an integer from"):
        arguments.check_seed(2**63)


def test_flags_and_choices():
    assert arguments.check_flag("trace", False) is False
    with pytest.raises(TypeError, match="trace is 1: give True or False"):
        arguments.check_flag("trace", 1)
    assert arguments.check_choice("acceptance", "match", ["match", "x"]) == "match"
    with pytest.raises(ValueError, match="unknown acceptance 'y': choose one of match, x"):
        arguments.check_choice("acceptance", "y", ["match", "x"])
    with pytest.raises(TypeError, match="acceptance is 3: choose one of"):
        arguments.check_choice("acceptance", 3, ["match", "x"])


def test_stops():
    assert arguments.split_stop("a", 9) == (("a",), ())
    assert arguments.split_stop(3, 9) == ((), (3,))
    assert arguments.split_stop(["a", np.int64(4)], 9) == (("a",), (4,))
    assert arguments.split_stop(np.array([1, 2]), 9) == ((), (1, 2))
    assert arguments.split_stop((), 9) == ((), ())


@pytest.mark.parametrize(
    ("stop", "error", "match"),
    [
        (3.5, TypeError, "stop is 3.5: give strings, token ids"),
        (None, TypeError, "stop is None: give strings"),
        ([3.5], TypeError, "stop holds 3.5"),
        ([True], TypeError, "stop holds True"),
        ({"a": 1}, TypeError, "stop is {'a': 1}"),
        (b"a", TypeError, "stop is b'a'"),
        ("", ValueError, "a stop string is empty"),
        ([9], ValueError, "stop token 9 is outside the vocabulary of 9"),
        (-1, ValueError, "stop token -1"),
    ],
)
def test_bad_stops(stop, error, match):
    with pytest.raises(error, match=match):
        arguments.split_stop(stop, 9)


BAD = [
    ({"prompt": None}, "the prompt is None"),
    ({"prompt": 3}, "the prompt is of type int"),
    ({"prompt": [1.5, 2]}, "the prompt holds 1.5"),
    ({"prompt": MESSAGE}, "single chat message"),
    ({"prompt": b"ab"}, "the prompt is bytes"),
    ({"prompt": [10**30]}, "outside the vocabulary"),
    ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5: give an integer"),
    ({"max_new_tokens": True}, "max_new_tokens is True"),
    ({"max_new_tokens": "8"}, "max_new_tokens is '8'"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"stop": 3.5}, "stop is 3.5"),
    ({"stop": [10**9]}, "outside the vocabulary"),
    ({"budget": 1_000_000}, "budget is 1000000: give an integer from 1 to 4096"),
    ({"budget": 2.5}, "budget is 2.5"),
    ({"block_size": 999}, r"block_size is 999: give 2 to 128, anchor included \(8 trained\)"),
    ({"block_size": 2.5}, "block_size is 2.5"),
    ({"block_size": 1}, "block_size is 1: give an integer at least 2"),
    ({"drafter": "draft_model", "depth": 1000}, "depth is 1000: give 1 to 128"),
    ({"drafter": "medusa", "depth": 1000}, "depth is 1000: give 1 to 5 "),
    ({"drafter": "parallelspec", "depth": 129}, "depth is 129: give 1 to 7 "),
    ({"drafter": "prompt_lookup", "depth": 200}, "depth is 200: give 1 to 8 "),
    ({"drafter": "draft_model", "depth": "8"}, "depth is '8': give an integer"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"temperature": "0.5"}, "temperature must be a number, got '0.5'"),
    ({"temperature": True}, "temperature must be a number"),
    ({"temperature": float("nan")}, "temperature must be finite"),
    ({"temperature": float("inf")}, "temperature must be finite"),
    ({"top_k": 2.5}, "top_k must be an integer"),
    ({"top_k": True}, "top_k must be an integer"),
    ({"top_p": "x"}, "top_p must be a number"),
    ({"seed": 1.5}, "seed is 1.5: give an integer"),
    ({"seed": 2**70}, "seed is .*: give an integer from"),
    ({"drafter": "nothing"}, "nothing"),
    ({"drafter": 3}, "drafter is 3"),
    ({"acceptance": 3}, "acceptance is 3: choose one of match"),
    ({"coupled": "on"}, "coupled is 'on': give True or False"),
    ({"ignore_eos": 1}, "ignore_eos is 1: give True or False"),
    ({"score_temperature": "x"}, "score_temperature is 'x'"),
    ({"policy": "bastion"}, "policy is 'bastion': give 'auto'"),
    ({"policy": 3}, "policy is of type int"),
]


@pytest.fixture(scope="module")
def mini():
    names = ("dflash", "draft_model", "medusa", "parallelspec")
    return jaxspec.load("mini", drafter={name: name for name in names})


@pytest.mark.parametrize(("changed", "match"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("call", [jaxspec.decode, jaxspec.stream])
def test_decode_and_stream_refuse_them(mini, call, changed, match):
    options = {"prompt": [1, 2, 3], "max_new_tokens": 4} | changed
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        call(mini, **group_options(**options))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_blocks_that_were_never_trained_warn(mini):
    config = mini.spec.drafter("dflash")
    with pytest.warns(UserWarning, match="block_size is 99, and 'dflash' was trained for 8"):
        assert choose_depth(config, "dflash", block_size=99) == 98
    assert choose_depth(config, "dflash", block_size=8) == 7


def test_arrays_are_token_ids():
    assert not is_batch(jnp.array([1, 2])) and is_batch(np.array([[1, 2], [3, 4]]))
    config = TargetConfig(
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=8,
        vocab_size=10,
    )
    assert to_ids(jnp.array([1, 2]), None, config) == [1, 2]


def test_every_seed_that_is_accepted_gives_keys():
    for seed in (0, -1, 2**32 - 1, 2**63 - 1, -(2**63)):
        sequence_keys(arguments.check_seed(seed), np.zeros(1, np.uint32))
