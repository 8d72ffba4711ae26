"""Checks of what callers pass to `decode` and `stream`: each error is one line that says what to
do.

A value of the wrong type is a TypeError, a value out of range a ValueError. Nothing here needs a
model or a device.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.io.text.tokenizer import replace_surrogates
from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import AUTOMATIC

MAX_BUDGET = 4096
"""Largest number of rows that a round may verify. The ancestor mask grows with the square of the
rows and the logits with rows times vocabulary. No published method verifies more than about 1000.
"""

_PROMPT = (
    "give text, token ids, chat messages ([{'role': ..., 'content': ...}]), or a list of these"
)


def check_prompt(prompt: Any) -> None:
    """Accept text, token ids, chat messages, or a non-empty list or tuple of these.

    Token ids may be a list, a tuple or a one-dimensional array of integers. Whether the ids are in
    the vocabulary is checked where the model is known.

    Raises:
      TypeError: it is none of these.
      ValueError: it is empty.
    """
    if _is_array(prompt) and prompt.ndim == 2:
        prompt = list(prompt)
    if isinstance(prompt, list | tuple) and prompt and not _holds_items(prompt):
        for index, one in enumerate(prompt):
            _check_one(one, f"prompt {index} of the list")
    else:
        _check_one(prompt, "the prompt")


def _check_one(prompt: Any, name: str) -> None:
    """Check a single prompt as `check_prompt` does."""
    if isinstance(prompt, str):
        return
    if isinstance(prompt, bytes | bytearray):
        raise TypeError(f"{name} is bytes: decode it to text first, prompt.decode('utf-8')")
    if isinstance(prompt, dict):
        raise TypeError(f"{name} is a single chat message: put it into a list, [message]")
    if _is_array(prompt):
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
            found = f"a {prompt.dtype} array of shape {tuple(prompt.shape)}"
            raise TypeError(f"{name} is {found}: token ids are a one-dimensional array of integers")
        return
    if not isinstance(prompt, list | tuple):
        raise TypeError(f"{name} is {_kind(prompt)}: {_PROMPT}")
    if not prompt:
        raise ValueError(f"empty prompt: {name} holds nothing; {_PROMPT}")
    same = _is_message if _is_message(prompt[0]) else _is_integer
    wrong = [item for item in prompt if not same(item)]
    if wrong:
        raise TypeError(f"{name} holds {_shown(wrong[0])}: {_PROMPT}")


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int if it is an integer from `least` to `most`.

    NumPy integers are accepted, booleans are not.

    Raises:
      TypeError: it is no integer.
      ValueError: it is out of range.
    """
    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    if not _is_integer(value):
        raise TypeError(f"{name} is {_shown(value)}: give an integer {limits}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {value}: give an integer {limits}")
    return int(value)


def check_budget(budget: Any) -> int:
    """Check the rows that a round verifies: 1 to `MAX_BUDGET`; raises as `check_count` does."""
    return check_count("budget", budget, 1, MAX_BUDGET)


def check_policy(policy: Any) -> bool:
    """Check a policy; return whether it is the automatic one, `auto`.

    Raises:
      TypeError: it is neither a policy nor a string.
      ValueError: a string other than `auto`.
    """
    if isinstance(policy, str) and policy != AUTOMATIC:
        raise ValueError(f"policy is {policy!r}: give {AUTOMATIC!r}, or one of jaxspec.policies")
    if not isinstance(policy, Policy | str | None):
        raise TypeError(
            f"policy is of type {type(policy).__name__}: give one that a function of "
            "jaxspec.policies returns"
        )
    return policy == AUTOMATIC if isinstance(policy, str) else False


def check_seed(seed: Any) -> int:
    """Check a seed: an integer from -2^63 to 2^63 - 1; raises as `check_count` does."""
    if not _is_integer(seed):
        raise TypeError(f"seed is {_shown(seed)}: give an integer")
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed is {seed}: give an integer from -2**63 to 2**63 - 1")
    return int(seed)


def check_positive(name: str, value: Any) -> float:
    """Return `value` as a float if it is a finite number above 0.

    Raises:
      TypeError: it is no number.
      ValueError: it is out of range.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {_shown(value)}: give a number above 0")
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value}: give a number above 0")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, else raise TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {_shown(value)}: give True or False")
    return value


def check_lookup(names: Sequence[str], value: Any) -> bool | str:
    """Return `value` if it is True, False or one of `names`, else raise TypeError."""
    if not (isinstance(value, bool) or value in names):
        others = ", ".join(map(repr, names))
        raise TypeError(f"lookup is {_shown(value)}: give True, False or {others}")
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
      TypeError: it is no string.
      ValueError: it is another string.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_shown(value)}: {choose_one(value, choices)}")
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}: {choose_one(value, choices)}")
    return value


def check_template(template: Any, tokenizer: Any) -> None:
    """Check variables of a chat template: a TypeError or ValueError says what is wrong with them."""
    if template is None:
        return
    if not isinstance(template, Mapping) or not all(isinstance(name, str) for name in template):
        shown = _shown(template)
        raise TypeError(f"template is {shown}: give names and values, {{'enable_thinking': False}}")
    if template and tokenizer is None:
        raise ValueError(
            "this model has no tokenizer, so it has no chat template: give no template"
        )
    if template:
        tokenizer.check_variables(template)


def check_messages(template: Any, prompt: Any) -> None:
    """Refuse variables of a chat template, a ValueError, if no prompt is chat messages."""
    several = isinstance(prompt, list | tuple) and not _holds_items(prompt)
    batch = prompt if several else [prompt]
    if template and not any(isinstance(one, list | tuple) and _is_message(one[0]) for one in batch):
        raise ValueError(
            "template is given, and no prompt is put into the chat template: give chat messages, "
            "and neither --raw nor --token-ids"
        )


def split_stop(stop: Any, vocab_size: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Split the argument `stop` into stop strings and stop token ids.

    Raises:
      TypeError: it holds anything else.
      ValueError: a string is empty, or an id is outside the vocabulary.
    """
    wanted = "give strings, token ids, or a list of these"
    if isinstance(stop, str) or _is_integer(stop):
        stop = (stop,)
    if _is_array(stop):
        stop = stop.tolist()
    if not isinstance(stop, list | tuple | set | frozenset):
        raise TypeError(f"stop is {_shown(stop)}: {wanted}")
    strings = tuple(replace_surrogates(item) for item in stop if isinstance(item, str))
    ids = tuple(item for item in stop if not isinstance(item, str))
    wrong = [item for item in ids if not _is_integer(item)]
    if wrong:
        raise TypeError(f"stop holds {_shown(wrong[0])}: {wanted}")
    if "" in strings:
        raise ValueError("a stop string is empty: every text contains it; remove it")
    beyond = [item for item in ids if not 0 <= item < vocab_size]
    if beyond:
        raise ValueError(
            f"stop token {beyond[0]} is outside the vocabulary of {vocab_size}: give ids of this "
            "model"
        )
    return strings, tuple(map(int, ids))


def _holds_items(prompt: Sequence[Any]) -> bool:
    """Whether a sequence is a single prompt: token ids (or other numbers) or chat messages."""
    return isinstance(prompt[0], numbers.Number | dict) or prompt[0] is None


def _is_message(item: Any) -> bool:
    return isinstance(item, dict)


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return hasattr(value, "ndim") and hasattr(value, "dtype") and value.ndim > 0


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
