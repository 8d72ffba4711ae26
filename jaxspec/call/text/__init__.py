"""From prompts to token ids, and from tokens to text."""
