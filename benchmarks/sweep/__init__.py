"""`python -m benchmarks sweep`: compare fixed budgets, beams and policies in turns."""
