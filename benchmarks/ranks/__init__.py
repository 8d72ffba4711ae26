"""How often a drafter's first candidate is right, on the spine of a tree and off it."""
