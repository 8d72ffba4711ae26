"""Settings that must precede the first import of JAX."""

import os

# Reference results are exact float32; a GPU's default matrix products are not. JAX_PLATFORMS=cuda overrides.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the suite's time is compilation; LLVM's optimiser changes neither the programs tested nor their layout.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
