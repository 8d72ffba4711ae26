"""Pure rules that decide claims from reports."""
