"""Compile kernels and loops for GPUs that are not here, and count what they do."""
