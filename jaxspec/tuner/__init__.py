"""Times rounds, remembers what they cost and chooses by it."""
