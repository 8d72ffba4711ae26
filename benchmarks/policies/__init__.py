"""`python -m benchmarks policies`: compare policies on the same prompts by three kinds of time."""
