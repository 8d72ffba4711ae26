"""Recorded rounds, and the tokens that other depths and sizes would have committed in them."""
