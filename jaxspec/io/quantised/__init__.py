"""Checkpoints in few bits a weight, as they are published: read as floats, or as they are."""
