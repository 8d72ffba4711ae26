"""The search over a rule's thresholds and rows: on made-up decodes, and on real ones."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.call.output import PerRound
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.learned import c2t, disco
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import load_about, load_policy, save_policy
from jaxspec.round.loop import run
from training.policies import tune

GOLDEN = SHIPPED / "dflash"
ABOUT = {"drafter": "dflash", "builder": "dynamic", "width": 2, "steps": 3}
TIMES = make_costs((1, 4, 8), (0,), 0.0, [[2.0], [3.0], [9.0]], plain=2.0, step=1.0, about=ABOUT)


@pytest.fixture
def options(tmp_path):
    save_costs(TIMES, tmp_path / "times.json")
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": [1, i]}) + "\n" for i in range(8))
    )
    files = dict(prompts=tmp_path / "prompts.jsonl", drafter=str(GOLDEN / "drafter"))
    return tune.TuneOptions(
        "svip",
        tmp_path / "times.json",
        tmp_path / "tuned",
        **files,
        target=str(GOLDEN / "target"),
        rows=(4, 0),
    )


def test_the_fastest_pair_is_kept(options, monkeypatch):
    """Rounds of as many steps as tenths of the threshold, that commit a token more for each, up to
    three.
    """
    asked = []

    def decode(params, prompt, *, speculation, **settings):
        rule, constants = speculation.policy.controls
        steps, rows = round(10 * float(rule.threshold)), int(constants.rows)
        asked.append((prompt, steps, rows, settings | {"speculation": speculation}))
        committed = np.array([1 + min(steps, 3)] * 2)
        return SimpleNamespace(
            per_round=PerRound(committed, np.full(2, rows), np.zeros(2), np.full(2, steps))
        )

    monkeypatch.setattr(jaxspec, "decode", decode)
    policy, report = tune.search_thresholds(dataclasses.replace(options, thresholds=(0.1, 0.5)))
    # Of eight prompts the fourth and the eighth are used; 0.3 is the rule's own.
    assert [one[:3] for one in asked[:6]] == [
        ([1, 3], steps, rows) for steps in (1, 3, 5) for rows in (4, 8)
    ]
    assert {tuple(one[0]) for one in asked} == {(1, 3), (1, 7)} and len(asked) == 12
    given = asked[0][3]
    assert (given["drafter"], given["budget"], given["speculation"].depth) == ("dflash", 8, 4)
    assert str(given["speculation"].builder) == "dynamic/w2"
    best = {
        "threshold": 0.3,
        "rows": 4,
        "tokens_per_second": 4 / 6,
        "acceptance_length": 4,
        "mean_steps": 3,
        "mean_rows": 4,
    }
    assert (
        report["best"] == pytest.approx(best)
        and report["own"]["rows"] == 8
        and not report["at_the_end"]
    )
    found = load_policy(options.out)
    assert jax.tree.map(float, found.controls) == jax.tree.map(float, policy.controls)
    assert found.config.functions() is policy.config.functions() and found.config.widths == (
        1,
        4,
        8,
    )
    assert load_about(options.out)["round costs by steps"] == TIMES.fingerprint
    assert json.loads((options.out / "report.json").read_text())["best"] == report["best"]


def test_refusals(options, tmp_path):
    with pytest.raises(ValueError, match="disco has a network: give --head"):
        tune.search_thresholds(dataclasses.replace(options, rule="disco"))
    save_policy(make_static(rows=4), tmp_path / "static")
    with pytest.raises(
        ValueError, match="holds a policy of static: give the folder of a disco policy"
    ):
        tune.search_thresholds(dataclasses.replace(options, rule="disco", head=tmp_path / "static"))
    with pytest.raises(ValueError, match="only every 4th prompt of a domain is used: give more"):
        tune.search_thresholds(dataclasses.replace(options, limit=3))
    save_costs(
        dataclasses.replace(TIMES, about={"drafter": "dflash", "builder": "chain", "steps": 3}),
        options.times,
    )
    with pytest.raises(ValueError, match="the round costs do not name the width of their rounds"):
        tune.search_thresholds(options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "ends"), [("ddd", (1.0, -9.0)), ("disco", (0.6, 0.4)), ("c2t", (0.6, 0.4))]
)
def test_real_decodes_compile_once(options, rule, ends, tmp_path):
    """Networks of zeros are of two minds. At one threshold drafting ends at once, at the other
    never.
    """
    about = {"drafter": "eagle3", "builder": "dynamic", "width": 2, "steps": 3}
    save_costs(dataclasses.replace(load_costs(options.times), about=about), options.times)
    makers = {
        "disco": (disco.make_disco, disco.init_disco),
        "c2t": (c2t.make_c2t, c2t.init_c2t),
    }
    if rule in makers:
        make, first = makers[rule]
        save_policy(make(jax.tree.map(jnp.zeros_like, first(jax.random.key(0)))), tmp_path / "head")
    options = dataclasses.replace(
        options, rule=rule, head=tmp_path / "head", target="mini", drafter="eagle3", limit=4
    )
    before = run._cache_size()
    _, report = tune.search_thresholds(
        dataclasses.replace(options, thresholds=ends, max_new_tokens=24)
    )
    assert run._cache_size() == before + 1 and report["prompts"] == 1
    found = {(one["threshold"], one["rows"]): one for one in report["all"]}
    assert len(found) == 6
    assert found[ends[0], 8]["mean_steps"] == 0 and found[ends[1], 8]["mean_steps"] == 3
    assert found[ends[1], 4]["mean_rows"] == 4 and found[ends[1], 8]["mean_rows"] == 8
