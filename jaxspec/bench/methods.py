"""Names of methods on the command line, and the options of `jaxspec.decode` that they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

BUILDERS = {
    "chain": "chain",
    "ddtree": "best_first",
    "best_first": "best_first",
    "tree": "expand",
    "expand": "expand",
    "beam": "beam",
    "static": "static",
}
COUPLED = {"on": (True,), "off": (False,), "both": (True, False)}


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode: its name in reports and the keyword arguments of `jaxspec.decode` that select it."""

    name: str
    options: dict[str, Any]


def parse_methods(
    names: str, *, budget: int, coupled: str = "on", paths: Sequence[Sequence[int]] | None = None
) -> list[Method]:
    """Methods of a comma-separated list.

    Each is `ar`, or `<drafter>-<builder>` with builder `chain`, `ddtree` (best-first), `tree` (JetSpec's `accum_logp`), `beam`
    or `static`, optionally followed by `+<score>` (`+entropy`, `+hybrid`, or `+hybrid0.3` with an entropy weight) and by
    `@<budget>`, the rows verified in a round with the root included. `ar` comes first and is added where it is missing, since
    every comparison is against it.

    Args:
      names: such as `ar,jetspec-tree,jetspec-ddtree@12`.
      budget: of methods that name none.
      coupled: whether drafters rank under the target's noise at temperature > 0: `on`, `off`, or `both`, which measures every
        drafted method twice, the second time as `<name>/uncoupled`.
      paths: the tree of `static`, whose budget is the rows of the tree.

    Raises:
      ValueError: a name that has not this form.
    """
    methods = [Method("ar", {"method": "ar"})]
    for name in filter(None, (name.strip() for name in names.split(","))):
        if name == "ar":
            continue
        options = _options(name, budget)
        if options["builder"] == "static":
            options |= {"paths": paths, "budget": 1 + len(paths or ())}
        for on in COUPLED[coupled]:
            methods.append(Method(name if on else f"{name}/uncoupled", options | {"coupled": on}))
    repeated = {method.name for method in methods if sum(other.name == method.name for other in methods) > 1}
    if repeated:
        raise ValueError(f"method {min(repeated)} is listed twice: name each once")
    return methods


def _options(name: str, default_budget: int) -> dict[str, Any]:
    builder = "|".join(BUILDERS)
    score = r"\+(?:(logprob|entropy)|(hybrid)(\d+(?:\.\d+)?)?)"
    form = re.fullmatch(rf"(.+)-({builder})(?:{score})?(?:@(\d+))?", name, re.ASCII)
    if form is None:
        raise ValueError(
            f"unknown method {name!r}: write ar, or <drafter>-<builder> with builder {', '.join(BUILDERS)}, as in "
            "jetspec-tree, jetspec-ddtree@12 or jetspec-tree+hybrid0.3@12"
        )
    drafter, builder, score, hybrid, weight, budget = form.groups()
    options = {"method": drafter, "builder": BUILDERS[builder], "budget": int(budget) if budget else default_budget}
    if score or hybrid:
        options |= {"score": score or hybrid, "entropy_weight": float(weight) if weight else None}
    return options
