"""The claims of each paper, as records."""
