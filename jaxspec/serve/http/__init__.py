"""The OpenAI endpoint: HTTP in front of a serving engine."""
