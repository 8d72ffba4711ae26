"""The methods of a sweep: one drafter and builder with every budget, policy and beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.builders import parse_builder
from jaxspec.policies.bastion.size_rules import SIZE_RULES

# Suffix of a rule's name for a policy that corrects its times by a running mean.
EMA = "+ema"
# Budgets between which speed changes little.
SERIES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Family(NamedTuple):
    """Methods that differ in how many rows they verify.

    Attributes:
      drafter: name of the drafter.
      fixed: `ar`, which has budget 1, and the method with every other budget.
      policies: the method with a policy of each rule.
      beams: the builder `beam` with the same budgets; empty unless requested.
    """

    drafter: str
    fixed: tuple[Method, ...]
    policies: tuple[Method, ...]
    beams: tuple[Method, ...]


def default_budgets(largest: int) -> tuple[int, ...]:
    """Return the budgets of the default series up to `largest`, and `largest` itself."""
    return (*(budget for budget in SERIES if budget < largest), largest)


def make_family(
    name: str, budgets: Sequence[int], largest: int, rules: Sequence[str] = (), beam: bool = False
) -> Family:
    """Make the methods of a sweep. In `policies`, the option `policy` is still a rule's name.

    Args:
      name: `<drafter>-<builder>[+score][/setting...]`, as for `bench` without budget and policy.
      budgets: rows verified per round, the root included.
      largest: most rows that a policy may verify.
      rules: rules such as `best`, or `best+ema`, which corrects its predicted times by the measured
        times of decodes.

    Raises:
      ValueError: the name is not one drafted method without a budget, or a budget is below 1.
    """
    parsed = parse_methods(name, budget=largest)[1:]
    if (
        len(parsed) != 1
        or "@" in name
        or parsed[0].options.get("policy")
        or not parse_builder(parsed[0].options["builder"]).spends_budget
    ):
        raise ValueError(
            f"cannot sweep the budgets of {name!r}: give one method without budget and policy, as jetspec-best_first"
        )
    if not budgets or min(*budgets, largest) < 1:
        raise ValueError(
            f"budgets are {list(budgets)} and {largest}: give numbers of rows, the root included, of at least 1"
        )
    unknown = next((rule for rule in rules if rule.removesuffix(EMA) not in SIZE_RULES), None)
    if unknown is not None:
        raise ValueError(
            f"unknown rule {unknown!r}: choose among {', '.join(SIZE_RULES)}, each also with {EMA}"
        )
    options, (head, slash, settings) = parsed[0].options, parsed[0].name.partition("/")
    drafter, drafted = options["drafter"], sorted({budget for budget in budgets if budget > 1})

    def sized(base: str, budget: int, **more) -> Method:
        return Method(f"{base}@{budget}{slash}{settings}", options | {"budget": budget} | more)

    policies = (sized(head, largest, policy=rule) for rule in rules)
    return Family(
        drafter=drafter,
        fixed=(Method("ar", {"drafter": "ar"}), *(sized(head, budget) for budget in drafted)),
        policies=tuple(
            Method(f"{one.name}/{one.options['policy']}", one.options) for one in policies
        ),
        beams=tuple(sized(f"{drafter}-beam", budget, builder="beam") for budget in drafted if beam),
    )
