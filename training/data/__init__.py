"""From files of records to batches: read, encode, cut, pack."""
