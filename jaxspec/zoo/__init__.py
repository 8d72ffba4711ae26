"""Whole models: load, save, inspect, convert and diagnose them. The model `mini` ships here."""
