"""What rules with a threshold share."""

import jax
import jax.numpy as jnp
import numpy as np
from observations import FRONTIER

from jaxspec.policies.learned import c2t, disco, specdec_plus
from jaxspec.policies.rules import ddd, svip
from jaxspec.policies.stopping import replace_threshold, take_best


def test_the_likeliest_node_is_looked_at():
    values = np.arange(12.0).reshape(2, 2, 3)
    assert take_best(values, FRONTIER).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert take_best(values[..., 0], FRONTIER).tolist() == [3, 6]


def test_another_threshold_compiles_nothing():
    weights = {
        "disco": disco.init_disco(jax.random.key(0)),
        "c2t": c2t.init_c2t(jax.random.key(0)),
    }
    weights["specdec_plus"] = specdec_plus.init_specdec_plus(jax.random.key(0), 3, 4)
    for make, own in (
        (ddd.make_ddd, ()),
        (svip.make_svip, ()),
        (disco.make_disco, (weights["disco"],)),
        (specdec_plus.make_specdec_plus, (weights["specdec_plus"],)),
        (c2t.make_c2t, (weights["c2t"],)),
    ):
        one, other = make(*own), replace_threshold(make(*own), 0.25)
        assert jax.tree.structure(one) == jax.tree.structure(other)
        assert make(*own, threshold=0.25).config.functions() is one.config.functions()
        assert (
            float(other.controls.threshold)
            == 0.25
            == float(make(*own, threshold=0.25).controls.threshold)
        )
        assert jax.tree.map(jnp.shape, one.controls) == jax.tree.map(jnp.shape, other.controls)
