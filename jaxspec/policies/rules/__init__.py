"""Policies without training: rules with a few constants, DSpark's rules, and baselines.

The baselines are constant, random and replayed decisions.
"""
