"""Names of methods on the command line, and the options of `jaxspec.decode` that they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspec.bench.calibrate import policy_for
from jaxspec.core.params import WEIGHTLESS, Spec
from jaxspec.drafters.paths import static_paths
from jaxspec.drafters.registry import record_of, records
from jaxspec.policies.named import NAMES

BUILDERS = {
    "chain": "chain",
    "ddtree": "best_first",
    "best_first": "best_first",
    "tree": "expand",
    "expand": "expand",
    "beam": "beam",
    "static": "static",
    "dynamic": "dynamic",
    "rank": "rank_guided",
    "rank_guided": "rank_guided",
}
COUPLED = {"on": (True,), "off": (False,), "both": (True, False)}
UNCOUPLED = "/uncoupled"
ALL = "all"
# What follows a slash: settings that are no part of the budget.
SETTINGS = {"d": "depth", "w": "tree_width", "b": "block_size"}
# The names that `all` gives to builders.
_SHORT = {"best_first": "ddtree", "expand": "tree", "rank_guided": "rank"}


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode: its name in reports and the keyword arguments of `jaxspec.decode` that
    select it.
    """

    name: str
    options: dict[str, Any]


def parse_methods(
    names: str,
    *,
    budget: int,
    coupled: str = "on",
    paths: Sequence[Sequence[int]] | None = None,
    spec: Spec | None = None,
) -> list[Method]:
    """Methods of a comma-separated list.

    Each is `ar`, `all`, or `<drafter>-<builder>[+<score>][@<budget>][/<setting>...]`:
      builder: `chain`, `ddtree` (best-first), `tree` (JetSpec's `accum_logp`), `beam`, `static`,
      `dynamic` (EAGLE-2's),
        `rank` (SpecBlock's rank-guided), or a builder's name in `jaxspec.decode`;
      score: `+entropy`, `+hybrid`, or `+hybrid0.3` with an entropy weight;
      budget: `@12`, the rows verified in a round with the root included;
      settings: `/d6` is a `depth` of 6 (longest drafted path), `/w4` a `tree_width` of 4, `/b8` a
      `block_size` of 8, as in
        `eagle3-dynamic@12/d6/w4`; last, a policy's name, as `/best` or `/ddd-ltd`, with which the
        budget is the most that a round verifies. The option `policy` is then that name, see
        `jaxspec.policies.named` and `with_policies`.
    `all` is every drafter of `spec` and those without weights, such as `prompt_lookup`, with the
    builders that their records list as compared; methods that are named as well are measured
    once. `ar` comes first and is added where it is missing, since every comparison is against it.

    Args:
      names: such as `ar,jetspec-tree,jetspec-ddtree@12`, `all` or `all,jetspec-beam`.
      budget: of methods that name none.
      coupled: whether drafters rank under the target's noise at temperature > 0: `on`, `off`, or
        `both`, which measures every drafted method twice, the second time as `<name>/uncoupled`;
        drafters that rank nothing once.
      paths: the tree of `static`, whose budget is the rows of the tree. None: one of the budget's
        rows that suits the drafter's sizes, see `jaxspec.drafters.paths.static_paths`.
      spec: of the loaded model; None only checks how names are written, and `all` stands for
        nothing.

    Raises:
      ValueError: a name that has not this form.
    """
    methods = [Method("ar", {"method": "ar"})]
    written = [
        name for name in map(str.strip, names.split(",")) if name and name not in ("ar", ALL)
    ]
    expanded = (
        [] if ALL not in map(str.strip, names.split(",")) or spec is None else list(_all(spec))
    )
    unranked = {record.name for record in records() if record.retrieval}
    for name in [name for name in expanded if name not in written] + written:
        options = _options(name, budget)
        if options["builder"] == "static":
            options |= _static(options, paths, spec)
        for on in COUPLED[coupled]:
            if on or coupled != "both" or options["method"] not in unranked:
                methods.append(Method(name if on else name + UNCOUPLED, options | {"coupled": on}))
    repeated = {
        method.name for method in methods if sum(other.name == method.name for other in methods) > 1
    }
    if repeated:
        raise ValueError(f"method {min(repeated)} is listed twice: name each once")
    return methods


def with_policies(params, methods: Sequence[Method], options: dict[str, Any]) -> list[Method]:
    """The methods with policies in place of their names, over round times that are measured where
    none are kept.

    Args:
      options: keyword arguments of `jaxspec.decode` common to all methods that do not set them.
    """
    found = []
    for method in methods:
        if isinstance(method.options.get("policy"), str):
            policy = policy_for(
                params, method.options["method"], method.options["policy"], options | method.options
            )
            method = Method(method.name, method.options | {"policy": policy})
        found.append(method)
    return found


def _all(spec: Spec) -> Iterator[str]:
    for drafter in dict.fromkeys([*dict(spec.drafters), *WEIGHTLESS]):
        for builder in record_of(spec.drafter(drafter)).compared:
            yield f"{drafter}-{_SHORT.get(builder, builder)}"


def _static(options: dict[str, Any], paths, spec: Spec | None) -> dict[str, Any]:
    if paths is None and spec is not None:
        paths = static_paths(spec.drafter(options["method"]), options["budget"])
    return {"paths": paths, "budget": 1 + len(paths or ())}


def _options(name: str, default_budget: int) -> dict[str, Any]:
    builder = "|".join(BUILDERS)
    score = r"\+(?:(logprob|entropy)|(hybrid)(\d+(?:\.\d+)?)?)"
    settings = rf"((?:/[{''.join(SETTINGS)}]\d+)*)(?:/({'|'.join(NAMES)}))?"
    form = re.fullmatch(rf"(.+)-({builder})(?:{score})?(?:@(\d+))?{settings}", name, re.ASCII)
    if form is None:
        raise ValueError(
            f"unknown method {name!r}: write ar, all, or <drafter>-<builder> with builder {', '.join(BUILDERS)}, as in "
            "jetspec-tree, jetspec-ddtree@12, jetspec-tree+hybrid0.3@12, eagle3-dynamic@12/d6/w4 or jetspec-ddtree@32/best"
        )
    drafter, builder, score, hybrid, weight, budget, settings, rule = form.groups()
    options = {
        "method": drafter,
        "builder": BUILDERS[builder],
        "budget": int(budget) if budget else default_budget,
    }
    if score or hybrid:
        options |= {"score": score or hybrid, "entropy_weight": float(weight) if weight else None}
    if rule:
        options |= {"policy": rule}
    return options | {SETTINGS[setting[0]]: int(setting[1:]) for setting in settings.split("/")[1:]}
