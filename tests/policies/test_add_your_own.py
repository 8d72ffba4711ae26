"""Add your own policy: the example of the policies' README, as it stands there, without a change in
the library.
"""

import dataclasses
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.call.options import group_options
from jaxspec.core.state import Accepted
from jaxspec.policies import Acts, Outcome, Policy, RoundShape, make_named, registry

PAGE = (Path(jaxspec.__file__).parent / "policies" / "README.md").read_text()
PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]


@pytest.fixture(scope="module")
def example():
    """The module of the example; its names and tags are gone afterwards."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) < 40
    known = dict(registry._NAMED), dict(registry._TAGS)
    module = sys.modules["twice"] = types.ModuleType("twice")
    exec(compile(code, "README.md", "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules["twice"]
    for found, before in zip((registry._NAMED, registry._TAGS), known, strict=True):
        found.clear()
        found.update(before)


def test_it_follows_the_protocol(example):
    policy = example.make_twice()
    functions = policy.config.functions()
    assert functions is type(policy.config)().functions()
    state = functions.init(RoundShape(2, 12, 4))
    assert jax.jit(functions.act.rows)((), state, None).tolist() == [4, 4]
    accepted = Accepted(None, np.array([7, 7]), None)
    state = jax.jit(functions.observe)(
        (), state, Outcome(*[None] * 4, accepted, None, np.array([True, False]))
    )
    np.testing.assert_allclose(state, [3.0, 2.0])


def test_it_has_a_name(example):
    assert make_named("twice", None) == example.make_twice()
    (_, method) = parse_methods("jetspec-best_first@12/twice", budget=8)
    assert method.options["policy"] == "twice"
    with pytest.raises(ValueError, match="the policy name 'ddd-paper' is taken"):
        jaxspec.policies.register("ddd-paper", example.make_twice)
    with pytest.raises(ValueError, match="cannot name a policy: use letters"):
        jaxspec.policies.register("a/b", example.make_twice)


def test_it_is_saved_and_loaded(example, tmp_path):
    policy = example.make_twice().replace(state=np.full(2, 3.5, np.float32))
    jaxspec.policies.save_policy(policy, tmp_path)
    found = make_named(str(tmp_path), None)
    assert found.config == policy.config and found.state.tolist() == [3.5, 3.5]
    del registry._TAGS["twice"]
    with pytest.raises(ValueError, match="tagged 'twice', which is not registered: import the"):
        jaxspec.policies.load_policy(tmp_path)
    # As when a notebook's cell runs again.
    jaxspec.policies.tagged("twice")(example.TwiceConfig)
    jaxspec.policies.tagged("twice")(example.TwiceConfig)
    with pytest.raises(ValueError, match="the tag 'ltd' is taken by LtdConfig"):
        jaxspec.policies.tagged("ltd")(example.TwiceConfig)

    @dataclasses.dataclass(frozen=True)
    class Nameless(example.TwiceConfig):
        pass

    with pytest.raises(ValueError, match="Nameless has no tag to be saved by: decorate it"):
        jaxspec.policies.save_policy(Policy(Nameless(), ()), tmp_path)


@pytest.mark.slow
def test_it_changes_no_text(example):
    golden = SHIPPED / "dflash"
    params = jaxspec.load(golden / "target", drafter={"dflash": golden / "drafter"})
    options = {"drafter": "dflash", "builder": "best_first", "budget": 12, "max_new_tokens": 16}
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=16)
    outs = jaxspec.decode(
        params, PROMPTS, **group_options(policy=make_named("twice", None), **options)
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert {out.policy.state.shape for out in outs} == {(2,)}


def test_every_act_and_every_folder_is_in_the_page():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(Acts._fields)
    files = re.findall(r"`(\w+/\w+\.py)`", PAGE)
    folder = Path(jaxspec.__file__).parent / "policies"
    assert all((folder / name).is_file() for name in files)
    described = {path.parent.name for path in map(Path, files)}
    assert described == {path.parent.name for path in folder.glob("*/__init__.py")}
