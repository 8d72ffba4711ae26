"""Parse names of methods on the command line into options of `jaxspec.decode`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspec.builders import list_names, parse_builder
from jaxspec.core.params import WEIGHTLESS, Params, Spec
from jaxspec.drafters.registry import record_of, records
from jaxspec.policies.named import check_policy
from jaxspec.policies.registry import AUTOMATIC, policy_forms
from jaxspec.tuner.calibrate.by_rows import policy_for

COUPLED = {"on": (True,), "off": (False,), "both": (True, False)}
UNCOUPLED, LOOKUP, POLICY = "/uncoupled", r"/(lookup|suffix)", "/policy="
ALL_METHODS, DEFAULT_METHOD = "all", "default"
# Settings of the method; all others are the builder's.
SETTINGS = {"d": ("depth", int), "b": ("block_size", int), "t": ("score_temperature", float)}


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode: its name in reports, and the keyword arguments of `jaxspec.decode` that
    select it. A builder is given by its spelling.
    """

    name: str
    options: dict[str, Any]


def parse_methods(
    names: str,
    *,
    budget: int,
    coupled: str = "on",
    spec: Spec | None = None,
) -> list[Method]:
    """Parse a comma-separated list of methods.

    Each is `ar`, `all`, `default`, or `<drafter>-<builder>[+<score>][@<budget>][/<setting>...]`:
      builder, score: a registered builder's name, and its score if it has one, as in `chain`,
        `best_first`, `expand+entropy` or `best_first+hybrid0.3`;
      budget: `@12`, the rows verified in a round with the root included;
      settings: `/d6` is a `depth` of 6 (longest drafted path), `/b8` a `block_size` of 8, `/t1` a
        `score_temperature` of 1 (the drafter's raw probabilities); others are the builder's, see
        `jaxspec.builders.parse`: `/w4` is a width of 4, as in `eagle3-dynamic@12/d6/w4`. `/lookup`
        mixes prompt lookup in, `/suffix` the most frequent continuation. The last setting may be a
        policy's name, such as `/best` or `/ddd-ltd`, or `/policy=FOLDER` of a saved one; the budget
        is then the most rows that a round verifies, and the option `policy` is the name or the
        folder, see `jaxspec.policies.named` and `attach_policies`.
    `default` is what `jaxspec.decode` does with the automatic policy, its other options left out.
    `all` is every drafter of `spec` and every drafter without weights, such as `prompt_lookup`,
    with the builders that their records list as compared. A method that is also named separately is
    measured once. `ar` comes first and is added if it is missing, since it is the baseline.

    Args:
      names: list such as `ar,jetspec-expand,jetspec-best_first@12`, `all` or `all,jetspec-beam`.
      budget: budget of methods that name none.
      coupled: whether drafters rank under the target's noise at temperature > 0: `on`, `off`, or
        `both`, which measures every drafted method twice, the second time as `<name>/uncoupled`,
        but drafters that rank nothing once.
      spec: spec of the loaded model; with None only the form of names is checked, and `all` adds
        no methods.

    Raises:
      ValueError: a name does not have this form.
    """
    given = [name for name in _split(names) if name]
    written = [name for name in given if name not in ("ar", ALL_METHODS)]
    expanded = [] if ALL_METHODS not in given or spec is None else list(_list_all(spec))
    unranked = {one.name for one in records() if one.retrieval and len(one.builders) == 1}
    methods = [Method("ar", {"drafter": "ar"})]
    for name in [name for name in expanded if name not in written] + written:
        options = _read_options(name, budget)
        for on in COUPLED[coupled]:
            if on or coupled != "both" or options.get("drafter") not in unranked:
                methods.append(Method(name if on else name + UNCOUPLED, options | {"coupled": on}))
    repeated = {
        method.name for method in methods if sum(other.name == method.name for other in methods) > 1
    }
    if repeated:
        raise ValueError(f"method {min(repeated)} is listed twice: name each once")
    return methods


def attach_policies(
    params: Params, methods: Sequence[Method], options: dict[str, Any]
) -> list[Method]:
    """Replace the names of policies in methods by the policies. Round times that they need are
    measured if none are kept.

    Args:
      options: keyword arguments of `jaxspec.decode` for all methods that do not set them.
    """
    found = []
    for method in methods:
        if method.options.get("policy") not in (None, AUTOMATIC):
            policy = policy_for(
                params,
                method.options["drafter"],
                method.options["policy"],
                options | method.options,
            )
            method = Method(method.name, method.options | {"policy": policy})
        found.append(method)
    return found


def _split(names: str) -> list[str]:
    """Split names at commas; a comma inside brackets is part of a setting's value."""
    parts, depth = [""], 0
    for character in names:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _list_all(spec: Spec) -> Iterator[str]:
    for drafter in dict.fromkeys([*dict(spec.drafters), *WEIGHTLESS]):
        for builder in record_of(spec.drafter(drafter)).compared:
            yield f"{drafter}-{builder}"


def _read_options(name: str, default_budget: int) -> dict[str, Any]:
    if name == DEFAULT_METHOD:
        return {"policy": AUTOMATIC}
    names = "|".join(sorted(list_names(), key=len, reverse=True))
    form = re.fullmatch(
        rf"(.+?)-({names})(\+[\w.]+)?(?:@(\d+))?((?:/.+)?)", name, re.ASCII | re.DOTALL
    )
    if form is None:
        raise ValueError(
            f"unknown method {name!r}: write ar, all, default, or <drafter>-<builder> with builder "
            f"{', '.join(list_names())}, as in jetspec-expand, jetspec-best_first@12, "
            "jetspec-expand+hybrid0.3@12, eagle3-dynamic@12/d6/w4 or jetspec-best_first@32/best"
        )
    drafter, builder, score, budget, rest = form.groups()
    options: dict[str, Any] = {
        "drafter": drafter,
        "budget": int(budget) if budget else default_budget,
    }
    rest, saved, folder = rest.partition(POLICY)
    if saved:
        check_policy(folder)
        options["policy"] = folder
    rest, _, last = rest.rpartition("/")
    policies = {form.partition(":")[0] for form in policy_forms()}
    if last.partition(":")[0] in policies:  # an argument has no slash here
        options["policy"] = last
    elif last:
        rest = f"{rest}/{last}"
    if mixed := re.search(rf"{LOOKUP}(?=/|$)", rest):
        options["lookup"] = True if mixed[1] == "lookup" else mixed[1]
        rest = rest[: mixed.start()] + rest[mixed.end() :]
    own = re.compile(r"/(?:([db])(\d+)|(t)(\d+(?:\.\d+)?))(?=/|$)", re.ASCII)
    for found in own.finditer(rest):
        letter, number = filter(None, found.groups())
        name, kind = SETTINGS[letter]
        options[name] = kind(number)
    try:
        parsed = parse_builder(builder + (score or "") + own.sub("", rest))
    except ValueError as error:
        raise ValueError(f"method {name!r}: {error}") from None
    return options | {"builder": str(parsed)}
