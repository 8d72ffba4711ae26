"""GPU kernels and their XLA twins, chosen through `registry.resolve`. Knows only jax."""
