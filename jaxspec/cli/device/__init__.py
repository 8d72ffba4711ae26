"""Commands about devices: what runs on them, and how fast."""
