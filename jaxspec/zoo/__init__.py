"""Whole models: load, save, inspect, convert and diagnose them; `mini` ships here."""
