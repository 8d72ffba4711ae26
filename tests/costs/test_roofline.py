"""Counts, times and fits against BASTION's golden data (tests/golden/bastion)."""

import numpy as np
import pytest
from golden_data import arrays

from jaxspec.core.config import TargetConfig
from jaxspec.costs.roofline import (
    DEVICES,
    paper_bytes,
    paper_flops,
)
from jaxspec.costs.roofline_fit import (
    RooflineFit,
    correct_running,
    fit_roofline,
    weigh_small_forwards,
)

ROOF, FITS = arrays("bastion", "roofline.npz"), arrays("bastion", "calibration.npz")
MODELS = sorted({name.split("/")[1] for name in ROOF if name.endswith("/cfg")})
GPUS = {"a6000": "a6000", "a100": "a100", "h100": "h100", "h200": "h200", "b6000": "rtx-pro-6000"}


def config(model: str) -> TargetConfig:
    layers, e, heads, kv_heads, dim, ffn, vocab = (int(x) for x in ROOF[f"roof/{model}/cfg"])
    return TargetConfig(
        hidden_size=e,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        ffn_size=ffn,
        vocab_size=vocab,
    )


def counts(model: str):
    s, c = ROOF["roof/s"][:, None], ROOF["roof/c"][None]
    return paper_flops(config(model), s, c), paper_bytes(config(model), s, c)


@pytest.mark.parametrize("model", MODELS)
def test_flops_and_bytes_equal_the_papers_to_the_integer(model):
    flops, moved = counts(model)
    assert flops.dtype == moved.dtype == np.int64
    np.testing.assert_array_equal(flops, ROOF[f"roof/{model}/flops"])
    np.testing.assert_array_equal(moved, ROOF[f"roof/{model}/bytes"])
    for gpu, device in GPUS.items():
        np.testing.assert_array_equal(ROOF[f"gpu/{gpu}"], DEVICES[device])
        if f"roof/{model}/t_{gpu}" in ROOF:
            peak = DEVICES[device]
            seconds = RooflineFit().seconds(flops / peak.flops, moved / peak.bandwidth)
            np.testing.assert_allclose(seconds, ROOF[f"roof/{model}/t_{gpu}"], rtol=1e-12)


@pytest.mark.parametrize("case", range(sum(name.endswith("_latency_s") for name in FITS)))
def test_the_fit_is_as_good_as_the_references(case):
    def read(name):
        return FITS[f"fit{case}_{name}"]

    model, device = str(read("model")), DEVICES[GPUS[str(read("gpu"))]]
    s, c, seconds = read("s").astype(np.int64), read("c").astype(np.int64), read("latency_s")
    compute = paper_flops(config(model), s, c) / device.flops
    memory = paper_bytes(config(model), s, c) / device.bandwidth
    sigma = weigh_small_forwards(s)
    np.testing.assert_allclose(sigma, read("sigma30"), rtol=1e-12)

    found = fit_roofline(compute, memory, seconds, sigma)
    assert min(found) >= 0
    error = found.seconds(compute, memory) - seconds
    assert np.sum((error / sigma) ** 2) <= 1.01 * read("wssr_fit30")
    assert np.sqrt(np.mean(error**2)) <= 1.05 * read("rmse_fit30")
    plain = fit_roofline(compute, memory, seconds).seconds(compute, memory) - seconds
    assert np.sqrt(np.mean(plain**2)) <= 1.01 * read("rmse_fit0")
    bare = RooflineFit().seconds(compute, memory) - seconds
    np.testing.assert_allclose(np.sqrt(np.mean(bare**2)), read("rmse_bare"), rtol=1e-9)


@pytest.mark.parametrize("rate", (0.1, 0.2))
def test_the_running_correction_follows_the_recorded_trace(rate):
    trace = correct_running(FITS["ema_obs"], FITS["ema_pred"], rate)
    np.testing.assert_allclose(trace, FITS[f"ema_{rate}_trace"], rtol=1e-12)


def test_a_fit_needs_times():
    with pytest.raises(ValueError, match="cannot fit 3 times: give at least 4"):
        fit_roofline([1.0] * 3, [1.0] * 3, [1.0] * 3)
