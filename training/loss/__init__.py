"""What a drafter is trained for: the target it learns from, losses by slot, sums in tiles."""
