"""DSpark's rules for the number of drafted tokens to verify."""
