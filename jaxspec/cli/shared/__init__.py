"""Options that several commands share, and what reads them."""
