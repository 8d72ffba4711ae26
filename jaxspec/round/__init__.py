"""One round: draft, grow, verify, accept, commit; and the loop over rounds."""
