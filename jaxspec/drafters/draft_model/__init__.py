"""A smaller language model as the drafter."""
