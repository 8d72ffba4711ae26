"""What the capacity of caches costs."""
