"""Drawing tokens: penalties, filters, noise that no drafter changes."""
