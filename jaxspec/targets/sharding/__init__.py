"""A target whose weights several devices share: what lies where, and the forward pass."""
