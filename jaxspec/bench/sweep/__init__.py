"""`jaxspec bench sweep`: compare fixed budgets, beams and policies in turns."""
