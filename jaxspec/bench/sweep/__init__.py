"""`jaxspec bench sweep`: fixed budgets, beams and policies, which take turns."""
