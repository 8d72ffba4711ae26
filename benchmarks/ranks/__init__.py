"""What a drafter's first candidates are worth: how often they are right, and the rank-1 gap."""
