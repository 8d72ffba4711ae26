"""Families of target models: their configs and the names of their weights."""
