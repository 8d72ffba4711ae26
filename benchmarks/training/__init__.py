"""Studies of training: sweeps of recipes, and trained policies beside what they must beat."""
