"""Studies of how this library behaves; `python -m benchmarks --help` lists them. Not installed."""
