"""Commands about checkpoints."""
