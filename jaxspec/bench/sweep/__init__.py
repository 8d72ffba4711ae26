"""`jaxspec bench sweep`: fixed budgets, beams and the controller, interleaved."""
