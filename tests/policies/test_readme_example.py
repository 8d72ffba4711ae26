"""The example of the policies' README is a policy, as it stands there."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.core.state import Accepted
from jaxspec.policies.protocol import Acts, Outcome, Shape

PAGE = (Path(jaxspec.__file__).parent / "policies" / "README.md").read_text()


@pytest.fixture(scope="module")
def policy():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names["policy"]


def test_it_follows_the_protocol(policy):
    functions = policy.settings.functions()
    assert functions is type(policy.settings)().functions()
    state = functions.init(Shape(2, 12, 4))
    assert jax.jit(functions.act.rows)((), state, None).tolist() == [4, 4]
    accepted = Accepted(None, np.array([7, 7]), None)
    state = jax.jit(functions.observe)(
        (), state, Outcome(*[None] * 4, accepted, None, np.array([True, False]))
    )
    np.testing.assert_allclose(state, [3.0, 2.0])


def test_every_act_is_in_the_table():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(Acts._fields)
    files = re.findall(r"`(\w+\.py)`", PAGE)
    folder = Path(jaxspec.__file__).parent / "policies"
    assert files and all(list(folder.rglob(name)) for name in files)


@pytest.mark.slow
def test_it_changes_no_text(policy):
    params = jaxspec.load("mini", drafter="jetspec", dtype="float32")
    prompts = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
    plain = jaxspec.decode(params, prompts, method="ar", max_new_tokens=24)
    outs = jaxspec.decode(
        params, prompts, method="jetspec", budget=12, max_new_tokens=24, policy=policy
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert {out.policy.state.shape for out in outs} == {(2,)}
