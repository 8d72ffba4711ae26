import numpy as np
import pytest

from jaxspec.bench.measure.decodes import Run
from jaxspec.bench.report.pairs import add_ratios, compare_rounds, find_partners
from jaxspec.bench.report.speed_table import tabulate_speeds
from jaxspec.io.text.prompt_files import LabelledPrompt

PROMPTS = [LabelledPrompt(domain, "p") for domain in ("math",) * 6 + ("code",) * 6]
NAMES = [
    "ar",
    "a-chain@8",
    "a-best_first@8",
    "b-best_first@8",
    "a-best_first@16",
    "b-best_first@16/lookup",
]


def runs(method, rounds, tokens=13, repeats=2):
    """Runs of `tokens` tokens; the second repeat of each has other rounds, which do not count."""
    return [
        Run(method, prompt, repeat, tuple(range(tokens)), own + 5 * repeat, 0, (), 1.0, 1.0)
        for prompt, own in enumerate(rounds)
        for repeat in range(repeats)
    ]


def test_partners_have_as_many_rows():
    assert find_partners(NAMES, "a-best_first") == {
        "a-chain@8": "a-best_first@8",
        "b-best_first@8": "a-best_first@8",
        "b-best_first@16/lookup": "a-best_first@16",
    }


def test_an_exact_name_is_the_partner_of_all():
    others = [name for name in NAMES if name != "a-best_first@16"]
    assert find_partners(NAMES, "a-best_first@16") == dict.fromkeys(others, "a-best_first@16")
    assert find_partners(["a", "b"], "b") == {"a": "b"}


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="'c-chain' is none of the methods ar, a-chain@8"):
        find_partners(NAMES, "c-chain")


def test_ratios_are_of_tokens_a_round():
    measured = runs("a", [4] * 6 + [6] * 6) + runs("b", [6] * 6 + [12] * 6)
    found = compare_rounds(measured, PROMPTS, {"a": "b"})
    assert set(found) == {("a", "math"), ("a", "code"), ("a", "all")}
    assert found["a", "math"]["acceptance_ratio"] == 1.5
    assert found["a", "code"]["acceptance_ratio"] == 2.0
    assert found["a", "all"]["acceptance_ratio"] == pytest.approx(18 / 10)
    assert found["a", "all"]["against"] == "b"


def test_tokens_of_the_prefill_do_not_count():
    measured = runs("a", [4] * 12, tokens=13) + runs("b", [4] * 12, tokens=7)
    assert compare_rounds(measured, PROMPTS, {"a": "b"})["a", "all"]["acceptance_ratio"] == 12 / 6


def test_intervals_are_paired():
    # Prompts differ by up to a factor of twelve, and the methods on each of them by 1.25
    # throughout.
    rounds = np.arange(1, 13)
    found = compare_rounds(runs("a", 4 * rounds) + runs("b", 5 * rounds), PROMPTS, {"a": "b"})
    assert found["a", "all"]["acceptance_ratio_ci"] == pytest.approx([1.25, 1.25])
    shuffled = np.random.default_rng(0).permutation(rounds)
    found = compare_rounds(runs("a", 4 * rounds) + runs("b", 5 * shuffled), PROMPTS, {"a": "b"})
    low, high = found["a", "all"]["acceptance_ratio_ci"]
    assert low < 1.1 and high > 1.4


def test_texts_without_rounds_have_no_ratio():
    found = compare_rounds(
        runs("a", [0] * 12, tokens=1) + runs("b", [0] * 12, tokens=1), PROMPTS, {"a": "b"}
    )
    assert found["a", "all"]["acceptance_ratio"] is None
    assert found["a", "all"]["acceptance_ratio_ci"] is None


def test_records_get_the_ratios_of_their_temperature():
    kept = {
        0.0: (PROMPTS, runs("a", [4] * 12) + runs("b", [6] * 12)),
        1.0: (PROMPTS, runs("a", [6] * 12) + runs("b", [6] * 12) + runs("c", [6] * 12)),
    }
    records = [
        {"temperature": temperature, "method": method, "domain": "all"}
        for temperature, methods in ((0.0, "ab"), (1.0, "abc"))
        for method in methods
    ]
    found = add_ratios(records, kept, {"a": "b", "c": "b"})
    assert [one.get("acceptance_ratio") for one in found] == [1.5, None, 1.0, None, 1.0]
    lines = tabulate_speeds(found).to_text().splitlines()
    assert "against" in lines[0] and "1.50   [1.50, 1.50]" in lines[1]
    assert add_ratios(records, kept, {}) == records
