"""ParallelSpec."""
