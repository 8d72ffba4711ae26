"""How weights lie: in panels, transposed, or quantised."""
