"""One training run: steps, checkpoints, metrics, how it stops, devices and optimizers."""
