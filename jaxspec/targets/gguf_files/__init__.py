"""Targets in GGUF files: their config.json and their tensors."""
