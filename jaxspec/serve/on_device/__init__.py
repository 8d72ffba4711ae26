"""The programs that a visit runs for the slots of an engine."""
