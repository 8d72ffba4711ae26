"""What an engine decides between visits."""
