"""GPU kernels and their XLA twins, chosen through `registry.resolve_kernel`. Knows only jax."""
