"""The options of a call: records of how tokens are sampled, and of how they are drafted.

Calls take the everyday options flat, and the rest in these records:

    sampling = jaxspec.Sampling(top_k=50, top_p=0.9)
    jaxspec.decode(params, prompt, temperature=0.8, sampling=sampling)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from jaxspec.builders import Builder, make_builder
from jaxspec.call import arguments
from jaxspec.core.runtime.near_miss import naming_fields, naming_options
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.drafters.prompt_lookup.mixture import SOURCES
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import ACCEPTANCE

# What ends a sequence: one string or token id, or several.
Stop = str | int | Iterable[str | int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the target's tokens are drawn. Checked when it is made.

    Attributes:
      temperature: divisor of the logits; 0.0 is greedy (None: the call's own, which is 0.0 if it
        gives none).
      top_k, top_p, min_p: keep the k likeliest tokens; then the fewest of at least this total
        probability (https://arxiv.org/abs/1904.09751); then those of at least this fraction of the
        highest probability (https://arxiv.org/abs/2407.01082). None: no filter.
      presence_penalty, frequency_penalty: subtracted from the logits of each generated token, once
        or for every time that it is there; -2 to 2, as in OpenAI's interface (0.0).
      repetition_penalty: divides the logits of tokens in the prompt or the text where they are
        positive, and multiplies them where they are negative; above 0
        (https://arxiv.org/abs/1909.05858; 1.0).
      min_tokens: tokens before which nothing ends the text: EOS tokens and stop ids are not drawn,
        and stop strings do not count (0).
      ignore_eos: do not stop at the model's EOS tokens.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        self.split()
        arguments.check_count("min_tokens", self.min_tokens, 0)
        arguments.check_flag("ignore_eos", self.ignore_eos)

    def split(self) -> Any:
        """Split into what is compiled in and what is traced, see `make_sampling`."""
        filters = self.top_k, self.top_p, self.min_p
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty
        temperature = 0.0 if self.temperature is None else self.temperature
        return make_sampling(temperature, *filters, *penalties)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speculation:
    """How a call drafts and verifies: it changes the speed, and with `acceptance="match"` no token.

    Checked when it is made; whether it suits the drafter, the call checks.

    Attributes:
      builder: how candidates become a tree: a value of `jaxspec.builders`, such as
        `builders.expand(width=3, fanout="top2gap")`, or its spelling, `"expand/w3/fanout=top2gap"`.
        None: the drafter's default.
      budget: rows that a round verifies, the root included; 1 to 4096 (None: 32; with the policy
        `auto`, as many as suit the device). DDTree's budget M, which leaves the root out, is M + 1
        here. `builders.static(paths)` verifies its paths instead.
      block_size: slots of a block drafter's block, the anchor included (None: as trained).
      depth: longest drafted path, in tokens, of drafters that draft step by step (None: the
        drafter's own).
      acceptance: `match` gives the text of autoregressive decoding with the same seed. `sequential`
        and `rejection` (temperature > 0) keep only its distribution.
      coupled: at temperature > 0, rank draft tokens under the noise that the target samples with,
        which accepts more of them (True; `match` only).
      lookup: blend looked-up tokens into the draft, weighted by their hit rate: True for prompt
        lookup, `suffix` for the most frequent continuation (None: prompt lookup with the policy
        `auto`, where the target is on one device and the drafter gives no lookahead).
      score_temperature: divisor of the draft logits when paths are scored. Below 1 trees grow
        deeper, above 1 wider (None: the policy's, if it names one, else the drafter's own).
      policy: decides, per round, whether to draft, how many steps, and how many rows to verify; or,
        per call, the block size. See `jaxspec.policies`. `auto` measures what rounds cost, chooses
        the rows of each and stops drafting while it does not pay; see `jaxspec.tuner.automatic`.
        `Output.policy` holds what a policy learned, for the next call. (None: `auto`; with a
        `builder` or a `budget`, no policy: every round drafts and verifies as much as these allow.)

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range.
    """

    builder: str | Builder | None = None
    budget: int | None = None
    block_size: int | None = None
    depth: int | None = None
    acceptance: str = "match"
    coupled: bool = True
    lookup: bool | str | None = None
    score_temperature: float | None = None
    policy: Policy | str | None = None

    def __post_init__(self) -> None:
        """Check the options; numbers become Python's own, and a spelling its builder."""
        arguments.check_choice("acceptance", self.acceptance, ACCEPTANCE)
        arguments.check_flag("coupled", self.coupled)
        arguments.check_policy(self.policy)
        for name, check in {
            "lookup": functools.partial(arguments.check_lookup, SOURCES),
            "budget": arguments.check_budget,
            "block_size": functools.partial(arguments.check_count, "block_size", least=2),
            "depth": functools.partial(arguments.check_count, "depth"),
            "score_temperature": functools.partial(arguments.check_positive, "score_temperature"),
            "builder": make_builder,
        }.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(value))

    @property
    def fixed(self) -> bool:
        """Whether it says what rounds verify, so that no policy chooses."""
        return self.budget is not None or self.builder is not None


RECORDS = {"sampling": Sampling, "speculation": Speculation}
naming_fields(RECORDS)
# For functions that take the records: an option of a record is told where it belongs.
names_options = functools.partial(naming_options, records=RECORDS)


def fill_records(
    temperature: float | None,
    budget: int | None,
    sampling: Sampling | None,
    speculation: Speculation | None,
) -> tuple[Sampling, Speculation]:
    """Put the everyday options that have a place in the records there.

    Raises:
      TypeError: a record is none.
      ValueError: an option is given twice, or is out of range.
    """
    given = {"sampling": sampling, "speculation": speculation}
    for name, kind in RECORDS.items():
        if not isinstance(given[name], kind | None):
            found, wanted = type(given[name]).__name__, kind.__name__
            raise TypeError(f"{name} is of type {found}: give {name}=jaxspec.{wanted}(...)")
    return (
        _fill("sampling", sampling or Sampling(), "temperature", temperature),
        _fill("speculation", speculation or Speculation(), "budget", budget),
    )


def _fill(name: str, record: Any, option: str, value: Any) -> Any:
    """Set an option of a record, which may not say it too."""
    if value is None:
        return record
    own = getattr(record, option)
    if own is not None:
        raise ValueError(f"{option} is {value!r}, and {own!r} in {name}: give it in one place")
    return dataclasses.replace(record, **{option: value})


def group_options(**options: Any) -> dict[str, Any]:
    """Make keyword arguments of `jaxspec.decode` from options of which each has a name of its own.

    For callers that gather options by name, as the command line does: those of the records are put
    into records, the others stay. A `temperature` and a `budget` stay flat.

    Raises:
      TypeError: a record is among them, beside options of it.
    """
    made = {name: value for name, value in options.items() if name not in _PLACES}
    for record, kind in RECORDS.items():
        own = {name: value for name, value in options.items() if _PLACES.get(name) == record}
        if own and record in made:
            raise TypeError(f"{record} is given, and {', '.join(own)}: put them into it")
        if own:
            made[record] = kind(**own)
    return made


_PLACES = {
    field.name: record
    for record, kind in RECORDS.items()
    for field in dataclasses.fields(kind)
    if field.name not in ("temperature", "budget")
}
