"""Trees, tokens and acceptance as text, pictures and notebook output."""
