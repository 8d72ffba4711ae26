"""Policies on disk."""

import dataclasses
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.costs.round_costs import make_costs
from jaxspec.io.fingerprint import fingerprint
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.compose import compose
from jaxspec.policies.protocol import Policy, PolicyConfig
from jaxspec.policies.registry import tagged
from jaxspec.policies.rules.ddd import make_ddd
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import load_policy, save_policy

ABOUT = {"drafter": "eagle3", "device": "cpu"}


def test_a_policy_comes_back_whole(tmp_path):
    table = make_costs((1, 4), (0, 64), (0.5, 1.0), [[1.0, 2.0], [3.0, 4.0]])
    policy = compose(make_static(steps=2), make_bastion(table)).replace(state=((), jnp.arange(3)))
    save_policy(policy, tmp_path / "policy", ABOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load_policy(tmp_path / "policy", about=ABOUT | {"unknown": 1})
    assert found.config == policy.config and hash(found.config) == hash(policy.config)
    assert jax.tree.structure(found) == jax.tree.structure(policy)
    jax.tree.map(np.testing.assert_array_equal, found, policy)
    assert found.config.functions() is policy.config.functions()
    assert fingerprint(found) == fingerprint(policy) != fingerprint(make_static(rows=2))


def test_another_use_warns(tmp_path):
    save_policy(make_static(rows=4), tmp_path, ABOUT)
    save_policy(make_static(rows=5), tmp_path, ABOUT)  # in place of the other
    with pytest.warns(
        UserWarning, match="was trained for device cpu, not H100: .* train it again for this device"
    ):
        found = load_policy(tmp_path, about={"drafter": "eagle3", "device": "H100"})
    assert int(found.controls.rows) == 5


def test_policies_without_the_scale_of_their_scores_are_refused(tmp_path):
    """Those that read scores; a scale that is added by hand is taken."""
    save_policy(compose(make_ddd(), make_static(rows=4)), tmp_path)
    header = json.loads((tmp_path / "policy.json").read_text())
    composed = header["policy"]["fields"]["config"]["fields"]
    for fields in (composed, *(part["fields"] for part in composed["parts"]["tuple"])):
        del fields["score_scale"]
    (tmp_path / "policy.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match='before a DddConfig kept the scale .* as "score_scale"'):
        load_policy(tmp_path)
    composed["parts"]["tuple"][0]["fields"]["score_scale"] = 0.25
    (tmp_path / "policy.json").write_text(json.dumps(header))
    assert load_policy(tmp_path).config.score_scale == 0.25


@tagged("local")
@dataclasses.dataclass(frozen=True)
class Local(PolicyConfig):
    odd: object = None


def test_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match="policy.json is missing"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match="holds a function, which cannot be saved"):
        save_policy(Policy(Local(odd=lambda: 0), None), tmp_path)
    save_policy(make_static(rows=4), tmp_path)
    header = json.loads((tmp_path / "policy.json").read_text())
    header["policy"]["tag"] = "os:system"
    (tmp_path / "policy.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match="tagged 'os:system', which is not registered: import the"):
        load_policy(tmp_path)
    header["policy"] = {"tag": "static-constants", "fields": {"steps": 1, "columns": 2}}
    (tmp_path / "policy.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match="does not fit Constants .*: train the policy again"):
        load_policy(tmp_path)
