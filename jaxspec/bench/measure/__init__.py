"""Measuring: prompts and methods, decodes that take turns, and the phases of a round."""
