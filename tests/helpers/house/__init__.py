"""Figures of the project's own structure, printed by `make house` and checked by test_house.py."""
