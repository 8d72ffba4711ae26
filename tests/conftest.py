"""Settings that must precede the first import of JAX."""

import os

# Reference results are exact float32; a GPU's default matrix products are not. JAX_PLATFORMS=cuda overrides.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
