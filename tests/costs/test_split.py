"""Rounds split into what drafting costs and what verification costs."""

import sys

import numpy as np

from jaxspec.costs.row_costs import split_rounds


def test_sums_are_the_rounds_that_draft():
    draft, verify = split_rounds([1.0], [[1.5], [2.0], [2.5]])
    np.testing.assert_allclose(draft, [0.5])
    np.testing.assert_allclose(verify, [[1.0], [1.5], [2.0]])


def test_times_that_seem_to_fall_are_averaged_at_each_context():
    plain, drafted = [1.0, 1.0], [[2.0, 2.0], [4.0, 3.0], [3.0, 5.0]]
    draft, verify = split_rounds(plain, drafted)
    np.testing.assert_allclose(draft, [1.0, 1.0])
    np.testing.assert_allclose(draft + verify, [[2.0, 2.0], [3.5, 3.0], [3.5, 5.0]])


def test_rising_times_do_not_import_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)  # importing it would fail
    draft, _ = split_rounds([1.0], [[2.0], [2.0], [3.0]])
    np.testing.assert_allclose(draft, [1.0])
