"""First calls of processes, and loads of checkpoints."""
