"""Target language models."""
