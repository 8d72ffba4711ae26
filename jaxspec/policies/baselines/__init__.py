"""Baselines to compare policies with: constant, random and replayed decisions."""
