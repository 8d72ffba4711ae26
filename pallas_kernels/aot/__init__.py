"""Compile kernels and loops for GPUs that are not here, and count what they do."""

# The scope of conditionals with a branch that is rarely taken, whose cost reports tell apart.
FALLBACK = "fallback"
