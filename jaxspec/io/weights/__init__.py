"""From the arrays of a checkpoint to those of a model."""
