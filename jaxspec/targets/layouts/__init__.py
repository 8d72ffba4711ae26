"""How weights lie in memory: each layout is a record, which one registry holds."""
