"""The correctness half of `jaxspec check`, on the GPU at hand."""

import pytest

from jaxspec.bench.check.agreement import measure_agreement
from jaxspec.bench.check.kernel_errors import check_kernels
from jaxspec.bench.check.layer_kernels import check_layer_kernels
from jaxspec.bench.check.lossless import METHODS, check_lossless
from jaxspec.bench.measure.methods import parse_methods


def test_compiled_kernels_are_the_reference():
    found = check_kernels(real=True)
    assert sum(one["cases"] for one in found.values()) > 0
    assert not [case for one in found.values() for case in one["failed"]]


def test_kernels_of_layers_are_their_references():
    found = check_layer_kernels(real=True)
    assert all(one["cases"] > 0 for one in found.values())
    assert not [case for one in found.values() for case in one["failed"]]


@pytest.mark.parametrize(
    "method", parse_methods(METHODS, budget=0)[1:], ids=lambda method: method.name
)
def test_float32_texts_are_autoregressive(method):
    found = check_lossless(128, (method,))
    assert {name: one["differing"] for name, one in found.items()} == dict.fromkeys(found, 0)


def test_bfloat16_swaps_close_decisions_only():
    found = measure_agreement(128)["margins"]
    assert sum(cell["differing"] for cell in found if cell["from"] >= 0.2) == 0
