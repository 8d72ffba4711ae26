"""What a session learns from served rounds, and how."""
