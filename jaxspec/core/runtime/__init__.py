"""What surrounds a program: JAX's settings, threads, signals, compilations, near misses."""
