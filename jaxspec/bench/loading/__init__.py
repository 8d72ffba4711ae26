"""How fast a checkpoint loads, and how much host memory that takes."""
