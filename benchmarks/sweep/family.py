"""The methods of a sweep: one drafter and builder with every budget, policy and beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.sweep.cost_kinds import KEPT, KINDS
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.builders import parse_builder
from jaxspec.policies.bastion.controller import EMA_SUFFIX
from jaxspec.policies.bastion.size_rules import SIZE_RULES

# Budgets between which speed changes little; BASTION's figures end at 1,024.
SERIES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Rule(NamedTuple):
    """What a policy of a sweep is made of.

    Attributes:
      name: of `SIZE_RULES`.
      costs: one of `KINDS`, or `KEPT`.
      corrected: whether it corrects its times after each verification.
    """

    name: str
    costs: str
    corrected: bool


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
      rules: see `parse_rule`.

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
    for rule in rules:
        parse_rule(rule)
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


def parse_rule(text: str) -> Rule:
    """Read `RULE[+COSTS][+ema]`, such as `best`, `bastion-paper+fit` or `bastion-paper+bare+ema`.

    Raises:
      ValueError: there is no such rule, or no such kind of costs.
    """
    rest = text.removesuffix(EMA_SUFFIX)
    name, _, costs = rest.partition("+")
    if name not in SIZE_RULES or (costs or KEPT) not in (*KINDS, KEPT) or rest.endswith("+"):
        raise ValueError(
            f"unknown rule {text!r}: choose among {', '.join(SIZE_RULES)}, each also with the costs "
            f"{', '.join(f'+{kind}' for kind in KINDS)}, and with {EMA_SUFFIX}"
        )
    return Rule(name, costs, rest != text)
