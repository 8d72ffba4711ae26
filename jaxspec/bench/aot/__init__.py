"""Compile programs for GPUs that you do not have."""
