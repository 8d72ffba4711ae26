"""Recorded rounds, and what other depths, sizes and blocks would have committed in them."""
