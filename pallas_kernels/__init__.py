"""GPU kernels and their XLA references; `registry.resolve_kernel` chooses. Imports only jax."""
